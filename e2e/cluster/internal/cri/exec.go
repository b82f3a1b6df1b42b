package cri

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	remote "k8s.io/cri-client/pkg"
	utilexec "k8s.io/utils/exec"

	"tandem.dev/e2e/cluster/internal/box"
	"tandem.dev/e2e/cluster/internal/spawn"
)

// ExecSync runs a command in a container to its end: exec probes and lifecycle hooks.
func (r *Runtime) ExecSync(ctx context.Context, id string, argv []string, timeout time.Duration) ([]byte, []byte, error) {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	var stdout, stderr bytes.Buffer
	err := r.exec(ctx, id, argv, nil, &stdout, &stderr)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return nil, nil, fmt.Errorf("%w: %q timed out after %s", remote.ErrCommandTimedOut, strings.Join(argv, " "), timeout)
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code, _ := verdict(exit.Sys().(syscall.WaitStatus), false)
		err = utilexec.CodeExitError{Err: fmt.Errorf("command %q exited with %d: %s", strings.Join(argv, " "), code, stderr.Bytes()), Code: int(code)}
	}
	return stdout.Bytes(), stderr.Bytes(), err
}

// exec runs a command in a running container: its box, its network, its group, its user.
func (r *Runtime) exec(ctx context.Context, id string, argv []string, in io.Reader, out, errOut io.Writer) error {
	c, err := r.findContainer(id)
	if err != nil {
		return notFound(err)
	}
	target, err := r.processOf(c)
	if err != nil {
		return err
	}
	defer target.Close()
	spec, err := r.spec(c)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env, cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = spec.Env, spec.Dir, in, out, errOut
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: credential(spec.User)}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // a child that keeps the output open does not keep the probe waiting
	if err := c.startInside(cmd, target, spec.Env); err != nil {
		return fmt.Errorf("exec in container %q: %w", c.config.GetMetadata().GetName(), err)
	}
	if err := cmd.Wait(); !errors.Is(err, exec.ErrWaitDelay) {
		return err
	}
	return nil // ended well; only its input, or the output of a child, was still open
}

// processOf opens the container's first process, by a handle that never means another one.
func (r *Runtime) processOf(c *container) (*os.File, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return nil, fmt.Errorf("container %q is not running", c.config.GetMetadata().GetName())
	}
	fd, err := unix.PidfdOpen(c.pid, 0)
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", c.pid, err)
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

func (c *container) startInside(cmd *exec.Cmd, target *os.File, env []string) error {
	join, done, err := c.group.Place(cmd)
	if err != nil {
		return err
	}
	defer done()
	start := func() error {
		// From here on this thread sees the container's files: only now can the command be looked up.
		path, err := box.FindCommand(cmd.Args[0], env)
		if err != nil {
			return err
		}
		cmd.Path, cmd.Err = path, nil
		return cmd.Start()
	}
	namespaces := unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWNET
	return spawn.On(start, join, spawn.Enter(target, namespaces))
}

func credential(user box.User) *syscall.Credential {
	c := &syscall.Credential{Uid: uint32(user.UID), Gid: uint32(user.GID)}
	for _, group := range user.Groups {
		c.Groups = append(c.Groups, uint32(group))
	}
	return c
}
