package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Group is one control group, in one controller (`only`) or in all.
type Group struct {
	tree Tree
	path string
	only string
}

// dirs are the group's folders; version 2 has one.
func (g Group) dirs() []string {
	if g.tree.Unified {
		return []string{filepath.Join(g.tree.Bases[tracking], g.path)}
	}
	var dirs []string
	for controller, base := range g.tree.Bases {
		if g.only == "" || g.only == controller {
			dirs = append(dirs, filepath.Join(base, g.path))
		}
	}
	return dirs
}

func (g Group) dir(controller string) (string, bool) {
	base, ok := g.tree.Bases[controller]
	return filepath.Join(base, g.path), ok
}

// Create makes the group; that it exists already is fine.
func (g Group) Create() error {
	for _, dir := range g.dirs() {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make a control group: %w", err)
		}
	}
	if g.tree.Unified {
		return g.delegate()
	}
	if base, ok := g.tree.Bases["cpu"]; ok {
		// The whole cluster shares one entry among the machine's processes: it must not count as a single one.
		_ = os.WriteFile(filepath.Join(base, "cpu.shares"), []byte("16384"), 0o644)
	}
	return nil
}

// delegate lets the group's folder, and those above it, have limits (version 2 hands controllers down step by step).
func (g Group) delegate() error {
	base := g.tree.Bases[tracking]
	for dir := filepath.Dir(filepath.Join(base, g.path)); strings.HasPrefix(dir, mountPoint); dir = filepath.Dir(dir) {
		defer func() {
			_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+cpu +memory +pids"), 0o644)
		}()
	}
	return nil
}

// Place makes cmd start inside the group. The returned step runs on the starting thread, see spawn.Start.
func (g Group) Place(cmd *exec.Cmd) (step func() error, done func(), err error) {
	if !g.tree.Unified {
		return g.joinThread, func() {}, nil
	}
	dir, err := os.Open(g.dirs()[0])
	if err != nil {
		return nil, nil, fmt.Errorf("open a control group: %w", err)
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
	return func() error { return nil }, func() { dir.Close() }, nil
}

// joinThread moves the calling thread alone (version 1 can); what it starts begins there, without a moment outside.
func (g Group) joinThread() error {
	tid := strconv.Itoa(unix.Gettid())
	for _, dir := range g.dirs() {
		if err := os.WriteFile(filepath.Join(dir, "tasks"), []byte(tid), 0o644); err != nil {
			return fmt.Errorf("enter a control group: %w", err)
		}
	}
	return nil
}

// Procs lists the processes of the group and of all groups below.
func (g Group) Procs() []int {
	dir, _ := g.dir(tracking)
	var pids []int
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return nil // a group may vanish while we look
		}
		text, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		for _, field := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
				pids = append(pids, pid)
			}
		}
		return nil
	})
	return pids
}

// Kill ends every process of the group and below with SIGKILL, and returns when none is left.
func (g Group) Kill(patience time.Duration) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		pids := g.Procs()
		if len(pids) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v outlived SIGKILL for %s", pids, patience)
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// Remove deletes the group and all below, deepest first; it must be empty of processes.
func (g Group) Remove() error {
	for _, dir := range g.dirs() {
		if err := removeTree(dir); err != nil {
			return err
		}
	}
	return nil
}

func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeTree(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	// The kernel lets go of a group a moment after its last process: EBUSY is not yet a failure.
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("remove control group %s: %w", dir, err)
		}
	}
}
