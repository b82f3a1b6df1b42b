package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Limits are a container's, as the kubelet works them out; zero means none.
type Limits struct {
	CPUQuota    int64 // microseconds of CPU in a period; -1: no limit
	CPUPeriod   int64 // microseconds
	CPUShares   int64
	MemoryBytes int64
}

// Limit applies limits; a controller that this machine lacks is skipped, since then nothing could be limited.
func (g Group) Limit(l Limits) error {
	for _, w := range l.writes(g.tree.Unified) {
		dir, ok := g.dir(w.controller)
		if !ok {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, w.file), []byte(w.value), 0o644); err != nil {
			return fmt.Errorf("set %s of a container to %s: %w", w.file, w.value, err)
		}
	}
	return nil
}

type write struct{ controller, file, value string }

func (l Limits) writes(unified bool) []write {
	if unified {
		return l.writesV2()
	}
	var all []write
	if l.CPUPeriod > 0 {
		all = append(all, write{"cpu", "cpu.cfs_period_us", number(l.CPUPeriod)})
	}
	if l.CPUQuota != 0 {
		all = append(all, write{"cpu", "cpu.cfs_quota_us", number(max(l.CPUQuota, -1))})
	}
	if l.CPUShares > 0 {
		all = append(all, write{"cpu", "cpu.shares", number(l.CPUShares)})
	}
	if l.MemoryBytes > 0 {
		all = append(all, write{"memory", "memory.limit_in_bytes", number(l.MemoryBytes)})
	}
	return all
}

func (l Limits) writesV2() []write {
	var all []write
	if l.CPUQuota > 0 && l.CPUPeriod > 0 {
		all = append(all, write{"cpu", "cpu.max", number(l.CPUQuota) + " " + number(l.CPUPeriod)})
	} else if l.CPUQuota < 0 {
		all = append(all, write{"cpu", "cpu.max", "max"})
	}
	if l.CPUShares > 0 {
		// Shares 2..262144 to weight 1..10000: the conversion that Kubernetes has used since cgroup version 2 came.
		all = append(all, write{"cpu", "cpu.weight", number(1 + (max(l.CPUShares, 2)-2)*9999/262142)})
	}
	if l.MemoryBytes > 0 {
		all = append(all, write{"memory", "memory.max", number(l.MemoryBytes)})
	}
	return all
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

// Usage is what a group has used so far.
type Usage struct {
	CPUNanoseconds uint64
	MemoryBytes    uint64
	OOMKills       uint64
}

// Usage reads what the kernel counts; what it does not count here is zero.
func (g Group) Usage() Usage {
	if g.tree.Unified {
		return Usage{
			CPUNanoseconds: g.field("cpu", "cpu.stat", "usage_usec") * 1000,
			MemoryBytes:    g.field("memory", "memory.current", ""),
			OOMKills:       g.field("memory", "memory.events", "oom_kill"),
		}
	}
	return Usage{
		CPUNanoseconds: g.field("cpuacct", "cpuacct.usage", ""),
		MemoryBytes:    g.field("memory", "memory.usage_in_bytes", ""),
		OOMKills:       g.field("memory", "memory.oom_control", "oom_kill"),
	}
}

// field reads `key value` lines, or a lone number where key is empty.
func (g Group) field(controller, file, key string) uint64 {
	dir, ok := g.dir(controller)
	if !ok {
		return 0
	}
	text, _ := os.ReadFile(filepath.Join(dir, file))
	return parseField(string(text), key)
}

func parseField(text, key string) uint64 {
	for _, line := range strings.Split(text, "\n") {
		fields := strings.Fields(line)
		if key == "" && len(fields) == 1 {
			fields = []string{"", fields[0]}
		}
		if len(fields) == 2 && fields[0] == key {
			n, _ := strconv.ParseUint(fields[1], 10, 64)
			return n
		}
	}
	return 0
}
