// Package cgroup keeps one cluster's processes in control groups: to find every one of them again, and to hold them to their limits.
//
// Version 1 has a folder for each controller, version 2 one folder for all. `tracking` is the controller that every
// process of the cluster is in; containers are in all of them.
package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const (
	mountPoint = "/sys/fs/cgroup"
	tracking   = "pids"
)

var controllers = []string{tracking, "cpu", "cpuacct", "memory"}

// Tree says where a cluster's groups are: a base folder for each controller (version 2: the same one for all).
type Tree struct {
	Unified bool              `json:"unified"`
	Bases   map[string]string `json:"bases"`
}

// NewTree finds where a cluster's groups can be on this machine; it makes nothing yet.
func NewTree(id string) (Tree, error) {
	if _, err := os.Stat(filepath.Join(mountPoint, "cgroup.controllers")); err == nil {
		base := filepath.Join(mountPoint, id)
		return Tree{Unified: true, Bases: map[string]string{tracking: base, "cpu": base, "memory": base}}, nil
	}
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return Tree{}, fmt.Errorf("find this process's control groups: %w", err)
	}
	tree := Tree{Bases: map[string]string{}}
	for controller, own := range parseV1(string(text)) {
		// Below the caller's own group, so that whatever bounds the caller bounds the cluster too.
		dir := filepath.Join(mountPoint, controller, own)
		if _, err := os.Stat(dir); err == nil {
			tree.Bases[controller] = filepath.Join(dir, id)
		}
	}
	if tree.Bases[tracking] == "" {
		return Tree{}, fmt.Errorf("no %q control group under %s: mount cgroup version 1 or 2 there", tracking, mountPoint)
	}
	return tree, nil
}

// parseV1 reads lines `4:memory:/a/b` of /proc/self/cgroup into controller -> path, for the controllers in use here.
func parseV1(text string) map[string]string {
	paths := map[string]string{}
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		fields := strings.SplitN(line, ":", 3)
		if len(fields) != 3 {
			continue
		}
		for _, name := range strings.Split(fields[1], ",") {
			for _, wanted := range controllers {
				if name == wanted {
					paths[name] = fields[2]
				}
			}
		}
	}
	return paths
}

// All is the group of everything that the cluster runs.
func (t Tree) All() Group { return Group{tree: t} }

// Daemon is the group of one control-plane process; it is only tracked.
func (t Tree) Daemon(name string) Group { return Group{tree: t, path: name, only: tracking} }

// Node is the group of a node: its kubelet and its containers.
func (t Tree) Node(name string) Group { return Group{tree: t, path: "node-" + name} }

// Kubelet is the group of the node's own process: version 2 has processes in leaves only.
func (t Tree) Kubelet(node string) Group {
	return Group{tree: t, path: filepath.Join("node-"+node, "kubelet"), only: tracking}
}

// Container is the group of one container.
func (t Tree) Container(node, id string) Group {
	return Group{tree: t, path: filepath.Join("node-"+node, id)}
}
