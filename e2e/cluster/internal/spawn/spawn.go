// Package spawn does things on a thread of their own, which may be in other namespaces and groups than the rest of the process.
package spawn

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// Step moves the calling thread somewhere: into a namespace, into a control group.
type Step func() error

// On runs the steps and then do, all on one thread that is thrown away afterwards.
func On(do func() error, steps ...Step) error {
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with this goroutine, and nothing else ever runs in the places it went.
		runtime.LockOSThread()
		for _, step := range steps {
			if err := step(); err != nil {
				done <- err
				return
			}
		}
		done <- do()
	}()
	return <-done
}

// Start starts cmd from where the steps lead.
func Start(cmd *exec.Cmd, steps ...Step) error { return On(cmd.Start, steps...) }

// Enter joins the namespaces of the given types that file stands for: a namespace's file, or a process's pidfd.
func Enter(file *os.File, types int) Step {
	return func() error {
		if types&unix.CLONE_NEWNS != 0 {
			// Threads share their root and working directory, and the kernel lets none with a share change its mounts.
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return fmt.Errorf("unshare: %w", err)
			}
		}
		if err := unix.Setns(int(file.Fd()), types); err != nil {
			return fmt.Errorf("enter namespace %s: %w", file.Name(), err)
		}
		return nil
	}
}

// EnterPath is Enter by the name of a namespace's file.
func EnterPath(path string, types int) Step {
	return func() error {
		file, err := os.Open(path)
		if err != nil {
			return fmt.Errorf("open a namespace: %w", err)
		}
		defer file.Close()
		return Enter(file, types)()
	}
}
