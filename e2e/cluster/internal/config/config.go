// Package config holds what the user declares in local.yaml: kinds of nodes, nodes, images and published ports.
package config

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// Config is the cluster as declared. Host paths in it are relative to the repository's root.
type Config struct {
	Kinds   map[string]Kind  `json:"kinds"`
	Nodes   []Node           `json:"nodes"`
	Images  map[string]Image `json:"images"`
	Publish []Publish        `json:"publish"`
	// Flags are added to those of a part of the control plane: apiserver, manager, scheduler.
	Flags map[string][]string `json:"flags"`
}

// Kind is a sort of node: what it says it has.
type Kind struct {
	Labels    map[string]string `json:"labels"`
	Taints    []v1.Taint        `json:"taints"`
	Resources v1.ResourceList   `json:"resources"`
}

// Node is one node. Index gives it its addresses and is never reused while the cluster lives.
type Node struct {
	Name  string `json:"name"`
	Kind  string `json:"kind"`
	Index int    `json:"index,omitempty"`
}

// Image is a name that pods may use. Paths maps a path in the container to one in the repository.
type Image struct {
	Paths map[string]string `json:"paths"`
	Env   map[string]string `json:"env"`
}

// Publish brings a port of a Service out to an address of the host.
type Publish struct {
	Host    string `json:"host"`
	Service string `json:"service"`
}

// Load reads a file and refuses what could not work, before anything is started.
func Load(path string) (*Config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the cluster's configuration: %w", err)
	}
	var c Config
	if err := yaml.UnmarshalStrict(text, &c); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for i := range c.Nodes {
		c.Nodes[i].Index = i + 1
	}
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &c, nil
}

func (c *Config) check() error {
	if len(c.Nodes) == 0 {
		return fmt.Errorf("nodes: at least one is needed")
	}
	seen := map[string]bool{}
	for _, n := range c.Nodes {
		if seen[n.Name] {
			return fmt.Errorf("nodes: %q is named twice", n.Name)
		}
		seen[n.Name] = true
		if _, err := c.KindOf(n.Kind); err != nil {
			return fmt.Errorf("node %q: %w", n.Name, err)
		}
	}
	for part := range c.Flags {
		if part != "apiserver" && part != "manager" && part != "scheduler" {
			return fmt.Errorf("flags: %q is not one of apiserver, manager, scheduler", part)
		}
	}
	for _, p := range c.Publish {
		if _, err := p.Target(); err != nil {
			return err
		}
	}
	return nil
}

// KindOf finds a kind by name, or says which there are.
func (c *Config) KindOf(name string) (Kind, error) {
	if kind, ok := c.Kinds[name]; ok {
		return kind, nil
	}
	known := make([]string, 0, len(c.Kinds))
	for k := range c.Kinds {
		known = append(known, k)
	}
	sort.Strings(known)
	return Kind{}, fmt.Errorf("kind %q is unknown: use one of %s", name, strings.Join(known, ", "))
}

// Add appends a node with the next free index; an index is never given twice, so neither is an address.
func (c *Config) Add(name, kind string) (Node, error) {
	if _, err := c.KindOf(kind); err != nil {
		return Node{}, err
	}
	next := 1
	for _, n := range c.Nodes {
		if n.Name == name {
			return Node{}, fmt.Errorf("node %q exists already", name)
		}
		next = max(next, n.Index+1)
	}
	if next > MaxNodes {
		return Node{}, fmt.Errorf("node %q would be number %d, and there are addresses for %d", name, next, MaxNodes)
	}
	node := Node{Name: name, Kind: kind, Index: next}
	c.Nodes = append(c.Nodes, node)
	return node, nil
}

// Find returns the node of that name.
func (c *Config) Find(name string) (Node, error) {
	for _, n := range c.Nodes {
		if n.Name == name {
			return n, nil
		}
	}
	return Node{}, fmt.Errorf("there is no node %q", name)
}

// ServicePort is where a published port leads.
type ServicePort struct{ Namespace, Name, Port string }

// Target reads "namespace/service:port"; the port is a number or the name of one.
func (p Publish) Target() (ServicePort, error) {
	namespace, rest, ok := strings.Cut(p.Service, "/")
	name, port, ok2 := strings.Cut(rest, ":")
	if !ok || !ok2 || namespace == "" || name == "" || port == "" {
		return ServicePort{}, fmt.Errorf("publish %s: %q is not namespace/service:port", p.Host, p.Service)
	}
	return ServicePort{namespace, name, port}, nil
}

// RepoRoot is the nearest folder above the configuration that is a git checkout.
func RepoRoot(configPath string) (string, error) {
	start, err := filepath.Abs(configPath)
	if err != nil {
		return "", err
	}
	for dir := filepath.Dir(start); ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, ".git")); err == nil {
			return dir, nil
		}
		if dir == "/" {
			return "", fmt.Errorf("no git checkout above %s: name the repository with --root", configPath)
		}
	}
}
