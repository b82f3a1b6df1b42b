package cgroup

import (
	"reflect"
	"testing"
)

func TestParseV1(t *testing.T) {
	text := "5:cpu,cpuacct:/a\n4:memory:/b/c\n3:pids:/\n2:devices:/d\n0::/e\n"
	want := map[string]string{"cpu": "/a", "cpuacct": "/a", "memory": "/b/c", "pids": "/"}
	if got := parseV1(text); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestWrites(t *testing.T) {
	for name, c := range map[string]struct {
		limits  Limits
		unified bool
		want    []write
	}{
		"nothing asked, v1": {},
		"nothing asked, v2": {unified: true},
		"half a CPU, v1": {Limits{CPUQuota: 50000, CPUPeriod: 100000, CPUShares: 512}, false, []write{
			{"cpu", "cpu.cfs_period_us", "100000"}, {"cpu", "cpu.cfs_quota_us", "50000"}, {"cpu", "cpu.shares", "512"},
		}},
		"half a CPU, v2": {Limits{CPUQuota: 50000, CPUPeriod: 100000, CPUShares: 512}, true, []write{
			{"cpu", "cpu.max", "50000 100000"}, {"cpu", "cpu.weight", "20"},
		}},
		"no quota, v1": {Limits{CPUQuota: -1}, false, []write{{"cpu", "cpu.cfs_quota_us", "-1"}}},
		"no quota, v2": {Limits{CPUQuota: -1}, true, []write{{"cpu", "cpu.max", "max"}}},
		"least shares": {Limits{CPUShares: 2}, true, []write{{"cpu", "cpu.weight", "1"}}},
		"memory, v1":   {Limits{MemoryBytes: 1 << 20}, false, []write{{"memory", "memory.limit_in_bytes", "1048576"}}},
		"memory, v2":   {Limits{MemoryBytes: 1 << 20}, true, []write{{"memory", "memory.max", "1048576"}}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := c.limits.writes(c.unified); !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestParseField(t *testing.T) {
	for name, c := range map[string]struct {
		text, key string
		want      uint64
	}{
		"lone number": {"42\n", "", 42},
		"by key":      {"oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", "oom_kill", 3},
		"no such key": {"low 0\n", "oom_kill", 0},
		"no file":     {"", "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := parseField(c.text, c.key); got != c.want {
				t.Errorf("got %d, want %d", got, c.want)
			}
		})
	}
}
