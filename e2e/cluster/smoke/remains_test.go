//go:build smoke

package smoke

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestNothingIsLeft ends the cluster at its worst, with parts of it dead, and looks for remains. It is the last test: Go
// runs tests file by file, in the order of the files' names.
func TestNothingIsLeft(t *testing.T) {
	id := strings.TrimSpace(read(t, filepath.Join(dir, "netns")))
	killDaemon(t, "apiserver")
	killDaemon(t, "node cpu-0")
	for range 2 { // twice: the second has nothing to do
		if _, err := cluster("down"); err != nil {
			t.Fatal(err)
		}
	}
	for what, command := range map[string][]string{
		"processes":          {"pgrep", "-f", dir},
		"mounts":             {"grep", "-e", id, "-e", dir, "/proc/self/mountinfo"},
		"network namespaces": {"sh", "-c", "ip netns list | grep " + id},
		"control groups":     {"sh", "-c", "find /sys/fs/cgroup -name '" + id + "*' | grep ."},
		"sockets":            {"sh", "-c", "ss -Htlnp '( sport = :26443 or sport = :28080 )' | grep ."},
		"interfaces":         {"sh", "-c", "ip -o link | grep ': pod'"},
	} {
		if out, _ := run(command[0], command[1:]...); out != "" {
			t.Errorf("%s left: %s", what, out)
		}
	}
	left, _ := os.ReadDir(dir)
	for _, entry := range left {
		if entry.Name() != "logs" && entry.Name() != "lock" {
			t.Errorf("file left: %s", entry.Name())
		}
	}
}

func killDaemon(t *testing.T, role string) {
	t.Helper()
	must(t, "pkill", "-KILL", "-f", "bin/cluster role "+strings.ReplaceAll(role, " ", "-")+" "+dir)
}
