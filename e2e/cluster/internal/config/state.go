package config

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"tandem.dev/e2e/cluster/internal/cgroup"
)

// State is a cluster that was started: its declaration, and what was decided at `up`.
type State struct {
	Config
	// Up says that `up` came to its end: until then nodes may be missing.
	Up   bool        `json:"up"`
	Dir  string      `json:"dir"`
	Root string      `json:"root"`
	Port int         `json:"port"`
	Tree cgroup.Tree `json:"tree"`
}

// ID names everything of a cluster that is visible on the machine; folders differ, so IDs do.
func ID(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return fmt.Sprintf("tandem-%x", sum[:4])
}

// ID is the name of the network namespace and of the cgroups.
func (s *State) ID() string { return ID(s.Dir) }

// Path is a path in the cluster's folder.
func (s *State) Path(parts ...string) string {
	return filepath.Join(append([]string{s.Dir}, parts...)...)
}

// NodeDir is the folder of a node: its kubelet's root, its containers.
func (s *State) NodeDir(name string) string { return s.Path("nodes", name) }

// NetNS is the path that pins the network namespace, the same as `ip netns` uses.
func (s *State) NetNS() string { return filepath.Join("/run/netns", s.ID()) }

// StateFile is where a cluster in dir keeps its state.
func StateFile(dir string) string { return filepath.Join(dir, "state.json") }

// ReadState finds the cluster in dir; the error is os.ErrNotExist where none was started.
func ReadState(dir string) (*State, error) {
	text, err := os.ReadFile(StateFile(dir))
	if err != nil {
		return nil, err
	}
	var s State
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("%s: %w", StateFile(dir), err)
	}
	return &s, nil
}

// Save writes the state in one step, so that a reader never sees half of it.
func (s *State) Save() error {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	next := StateFile(s.Dir) + ".next"
	if err := os.WriteFile(next, text, 0o600); err != nil {
		return err
	}
	return os.Rename(next, StateFile(s.Dir))
}
