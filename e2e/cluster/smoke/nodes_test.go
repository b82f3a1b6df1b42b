//go:build smoke

package smoke

import (
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const ready = `.status.conditions[?(@.type=="Ready")].status`

func TestGPUsAreCounted(t *testing.T) {
	apply(t, "gpu.yaml", "NAME", "first")
	kubectl(t, "wait", "--for=condition=Ready", "pod/gpu-first", "--timeout=60s")
	apply(t, "gpu.yaml", "NAME", "second")
	eventually(t, 20*time.Second, "Insufficient nvidia.com/gpu", field("pod/gpu-second", ".status.conditions[0].message"))
	t.Run("until a node is added", func(t *testing.T) {
		if _, err := cluster("node", "add", "h100-1", "--kind", "h100"); err != nil {
			t.Fatal(err)
		}
		eventually(t, 30*time.Second, "Running", field("pod/gpu-second", ".status.phase"))
	})
	t.Run("which is lost", loseNode)
	t.Run("and comes back", func(t *testing.T) {
		if _, err := cluster("node", "add", "h100-1"); err != nil {
			t.Fatal(err)
		}
		eventually(t, 30*time.Second, "True", field("node/h100-1", ready))
	})
}

func loseNode(t *testing.T) {
	if _, err := cluster("node", "kill", "h100-1"); err != nil {
		t.Fatal(err)
	}
	eventually(t, 25*time.Second, "Unknown", field("node/h100-1", ready))
	eventually(t, 10*time.Second, "node.kubernetes.io/unreachable", field("node/h100-1", ".spec.taints"))
}

// TestProxyOutlivesItsNode deletes the Node that kube-proxy speaks for: kube-proxy ends then, and must be back.
func TestProxyOutlivesItsNode(t *testing.T) {
	t.Cleanup(func() {
		for _, command := range [][]string{{"kill", "cpu-0"}, {"add", "cpu-0"}} {
			if _, err := cluster(append([]string{"node"}, command...)...); err != nil {
				t.Error(err)
			}
		}
	})
	kubectl(t, "delete", "node", "cpu-0")
	eventually(t, 20*time.Second, "kube-proxy ended", func() (string, error) { return run("cat", filepath.Join(dir, "logs", "gate.log")) })
	eventually(t, 20*time.Second, "runs", func() (string, error) {
		out, _ := cluster("status") // its error is about the node that is not there
		_, after, _ := strings.Cut(out, "proxy")
		line, _, _ := strings.Cut(after, "\n")
		return line, nil
	})
}

func TestUpTwice(t *testing.T) {
	out, err := cluster("up", "--config", "testdata/cluster.yaml", "--port", "26444")
	if err != nil || !strings.Contains(out, "already up") {
		t.Fatalf("got %q, %v", out, err)
	}
}
