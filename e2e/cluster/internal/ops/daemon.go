// Package ops is what a person does with a cluster: bring it up and down, look at it, add and kill nodes.
package ops

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"tandem.dev/e2e/cluster/internal/cgroup"
	"tandem.dev/e2e/cluster/internal/config"
	"tandem.dev/e2e/cluster/internal/spawn"
)

// Role is the first argument of a daemon; the second says which, the third is the cluster's folder.
const Role = "role"

// Gate is the daemon that is neither part of a usual control plane nor a node.
const Gate = "gate"

const nodePrefix = "node-"

// NodeOf is the node that a role is for.
func NodeOf(role string) (string, bool) { return strings.CutPrefix(role, nodePrefix) }

// daemon starts one of the cluster's processes in the background, in its group and in the cluster's network namespace.
func daemon(state *config.State, role string, files ...*os.File) error {
	group := state.Tree.Daemon(role)
	if name, ok := NodeOf(role); ok {
		group = state.Tree.Kubelet(name)
	}
	if err := group.Create(); err != nil {
		return err
	}
	log, err := os.OpenFile(state.Path("logs", role+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := command(state, role, log)
	cmd.ExtraFiles = files
	if err := startIn(state, group, cmd); err != nil {
		return fmt.Errorf("start %s: %w", role, err)
	}
	return cmd.Process.Release()
}

func command(state *config.State, role string, log *os.File) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", Role, role, state.Dir)
	if path, err := os.Executable(); err == nil {
		cmd.Args[0] = path // what `ps` shows
	}
	// Half the garbage between collections: memory is what a laptop has least of.
	cmd.Env = append(os.Environ(), "GOGC=50")
	cmd.Dir, cmd.Stdout, cmd.Stderr = state.Dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if _, ok := NodeOf(role); ok {
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWNS
	}
	return cmd
}

func startIn(state *config.State, group cgroup.Group, cmd *exec.Cmd) error {
	join, done, err := group.Place(cmd)
	if err != nil {
		return err
	}
	defer done()
	return spawn.Start(cmd, join, spawn.EnterPath(state.NetNS(), unix.CLONE_NEWNET))
}
