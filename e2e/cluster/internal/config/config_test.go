package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func load(t *testing.T, text string) (*Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return Load(path)
}

func TestTheDeclaredClusterLoads(t *testing.T) {
	c, err := Load("../../local.yaml")
	if err != nil {
		t.Fatal(err)
	}
	gpus := c.Kinds["h100"].Resources["nvidia.com/gpu"]
	if gpus.Value() != 8 || len(c.Kinds["h200"].Taints) != 1 || c.Nodes[2].Index != 3 {
		t.Errorf("not as declared: %+v", c)
	}
}

func TestLoadRefuses(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"no nodes":       {"kinds: {a: {}}", "at least one"},
		"unknown kind":   {"kinds: {a: {}, b: {}}\nnodes: [{name: n, kind: c}]", "use one of a, b"},
		"two of a name":  {"kinds: {a: {}}\nnodes: [{name: n, kind: a}, {name: n, kind: a}]", "named twice"},
		"unknown field":  {"kind: {}", "unknown field"},
		"unknown part":   {"kinds: {a: {}}\nnodes: [{name: n, kind: a}]\nflags: {etcd: [--x]}", "not one of apiserver"},
		"bad publishing": {"kinds: {a: {}}\nnodes: [{name: n, kind: a}]\npublish: [{host: h, service: web}]", "namespace/service:port"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := load(t, c.text); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
}

func TestAddNeverGivesAnIndexTwice(t *testing.T) {
	c, err := load(t, "kinds: {a: {}}\nnodes: [{name: n, kind: a}]")
	if err != nil {
		t.Fatal(err)
	}
	if node, err := c.Add("m", "a"); err != nil || node.Index != 2 || node.Address() != "10.244.255.12" || node.PodAddress(7) != "10.244.2.7" {
		t.Errorf("got %+v, %v", node, err)
	}
	if _, err := c.Add("m", "a"); err == nil {
		t.Error("a second node of the same name was accepted")
	}
}

func TestTarget(t *testing.T) {
	got, err := Publish{Service: "serving/router:8000"}.Target()
	if err != nil || got != (ServicePort{"serving", "router", "8000"}) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestIDsDiffer(t *testing.T) {
	if ID("/a") == ID("/b") || len(ID("/a")) != len("tandem-12345678") {
		t.Errorf("IDs are %s and %s", ID("/a"), ID("/b"))
	}
}
