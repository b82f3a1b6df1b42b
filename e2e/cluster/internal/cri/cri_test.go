package cri

import (
	"strings"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"tandem.dev/e2e/cluster/internal/config"
)

func TestLogEntry(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 60, time.UTC)
	for text, want := range map[string]string{
		"whole line\n": "2026-01-02T03:04:05.00000006Z stdout F whole line\n",
		"a part":       "2026-01-02T03:04:05.00000006Z stdout P a part\n",
		"\n":           "2026-01-02T03:04:05.00000006Z stdout F \n",
	} {
		if got := string(entry(now, "stdout", []byte(text))); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}

func TestVerdict(t *testing.T) {
	exit := func(code int) syscall.WaitStatus { return syscall.WaitStatus(code << 8) }
	killed := func(signal syscall.Signal) syscall.WaitStatus { return syscall.WaitStatus(signal) }
	for name, c := range map[string]struct {
		status syscall.WaitStatus
		oom    bool
		code   int32
		reason string
	}{
		"well":                         {exit(0), false, 0, "Completed"},
		"code":                         {exit(3), false, 3, "Error"},
		"signal":                       {killed(syscall.SIGTERM), false, 143, "Error"},
		"killed":                       {killed(syscall.SIGKILL), false, 137, "Error"},
		"killed for memory":            {killed(syscall.SIGKILL), true, 137, "OOMKilled"},
		"a child was, it went on well": {exit(0), true, 0, "Completed"},
	} {
		t.Run(name, func(t *testing.T) {
			if code, reason := verdict(c.status, c.oom); code != c.code || reason != c.reason {
				t.Errorf("got %d %s, want %d %s", code, reason, c.code, c.reason)
			}
		})
	}
}

func TestPoolGoesRound(t *testing.T) {
	p := newPool()
	first, _ := p.take()
	p.give(first)
	for want := first + 1; want <= lastHost; want++ {
		if got, err := p.take(); err != nil || got != want {
			t.Fatalf("got %d, %v, want %d", got, err, want)
		}
	}
	if got, err := p.take(); err != nil || got != first {
		t.Errorf("the address given back came as %d, %v", got, err)
	}
	if _, err := p.take(); err == nil {
		t.Error("an address was given twice")
	}
}

func TestImages(t *testing.T) {
	images := &Images{images: map[string]config.Image{"a:local": {}}}
	for _, known := range []string{"a:local", imageID("a:local")} {
		if name, err := images.find(known); err != nil || name != "a:local" {
			t.Errorf("%s: got %q, %v", known, name, err)
		}
	}
	if _, err := images.find("b:local"); err == nil || !strings.Contains(err.Error(), "a:local") {
		t.Errorf("the refusal should name what there is: %v", err)
	}
}

func TestPutSetsOnce(t *testing.T) {
	env := put(put([]string{"PATH=/a", "PATHS=/b"}, "PATH", "/c"), "X", "")
	if got := strings.Join(env, " "); got != "PATHS=/b PATH=/c X=" {
		t.Errorf("got %q", got)
	}
}

func TestIsHidden(t *testing.T) {
	mounted := []string{"/", "/data"}
	for path, want := range map[string]bool{"/srv/repo": false, "/data/repo": true, "/data": true, "/database": false, "/tmp/repo": true} {
		if got := isHidden(path, mounted); got != want {
			t.Errorf("%s: got %v", path, got)
		}
	}
}

func TestStopSignal(t *testing.T) {
	for given, want := range map[runtimeapi.Signal]syscall.Signal{
		runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT: syscall.SIGTERM,
		runtimeapi.Signal_SIGNAL_SIGUSR1:         syscall.SIGUSR1,
	} {
		if got := stopSignal(&runtimeapi.ContainerConfig{StopSignal: given}); got != want {
			t.Errorf("%s: got %s, want %s", given, got, want)
		}
	}
}

func TestResolvConf(t *testing.T) {
	got := resolvConf(&runtimeapi.DNSConfig{Servers: []string{"1.2.3.4"}, Searches: []string{"a", "b"}, Options: []string{"ndots:5"}})
	if got != "nameserver 1.2.3.4\nsearch a b\noptions ndots:5\n" {
		t.Errorf("got %q", got)
	}
}
