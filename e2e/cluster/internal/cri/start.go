package cri

import (
	"context"
	"encoding/json"
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

	"tandem.dev/e2e/cluster/internal/box"
	"tandem.dev/e2e/cluster/internal/spawn"
)

// BoxRole is the argument by which this binary knows that it is to become a container.
const BoxRole = "box"

// StartContainer runs the command. It returns when the command has replaced the helper that prepared its box, or says why not.
func (r *Runtime) StartContainer(_ context.Context, id string) error {
	c, err := r.findContainer(id)
	if err != nil {
		return notFound(err)
	}
	spec, err := r.spec(c)
	if err != nil {
		return r.refuse(c, err)
	}
	process, logged, err := c.launch(spec)
	if err != nil {
		return r.refuse(c, err)
	}
	r.mu.Lock()
	c.state, c.started, c.pid = runtimeapi.ContainerState_CONTAINER_RUNNING, time.Now(), process.Process.Pid
	r.mu.Unlock()
	go r.await(c, process, logged)
	return nil
}

// refuse notes that a container never ran: the kubelet shows the message and backs off.
func (r *Runtime) refuse(c *container, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.state, c.finished, c.started = runtimeapi.ContainerState_CONTAINER_EXITED, time.Now(), time.Now()
	c.exitCode, c.reason, c.message = 128, "StartError", err.Error()
	close(c.done)
	return fmt.Errorf("start container %q: %w", c.config.GetMetadata().GetName(), err)
}

// launch starts the helper and waits for its report. logged closes when all output is in the log.
func (c *container) launch(spec *box.Spec) (process *exec.Cmd, logged <-chan struct{}, err error) {
	specRead, specWrite, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer specRead.Close()
	defer specWrite.Close()
	reportRead, reportWrite, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer reportRead.Close()
	defer reportWrite.Close()

	cmd := exec.Command("/proc/self/exe", BoxRole)
	cmd.Env = []string{"GOGC=off"} // the helper lives for milliseconds: halves its time
	cmd.ExtraFiles = box.Files(specRead, reportWrite)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS}
	logged, closeOutput, err := c.log.Attach(cmd)
	if err != nil {
		return nil, nil, err
	}
	err = c.startInPlace(cmd)
	closeOutput()
	if err != nil {
		return nil, nil, err
	}
	reportWrite.Close()
	if err := json.NewEncoder(specWrite).Encode(spec); err != nil && !errors.Is(err, syscall.EPIPE) {
		return nil, nil, err
	}
	specWrite.Close()
	if report, _ := io.ReadAll(reportRead); len(report) > 0 {
		_ = cmd.Wait()
		return nil, nil, errors.New(string(report))
	}
	return cmd, logged, nil
}

// startInPlace starts cmd in the container's group and the pod's network.
func (c *container) startInPlace(cmd *exec.Cmd) error {
	join, done, err := c.group.Place(cmd)
	if err != nil {
		return err
	}
	defer done()
	steps := []spawn.Step{join}
	if c.sandbox.pod != nil {
		steps = append(steps, spawn.Enter(c.sandbox.pod.File, unix.CLONE_NEWNET))
	}
	return spawn.Start(cmd, steps...)
}

// await notes how the container ended.
func (r *Runtime) await(c *container, process *exec.Cmd, logged <-chan struct{}) {
	_ = process.Wait()
	<-logged
	_ = c.group.Kill(5 * time.Second)
	oom := c.group.Usage().OOMKills > 0
	r.mu.Lock()
	defer r.mu.Unlock()
	c.state, c.finished, c.pid = runtimeapi.ContainerState_CONTAINER_EXITED, time.Now(), 0
	c.exitCode, c.reason = verdict(process.ProcessState.Sys().(syscall.WaitStatus), oom)
	close(c.done)
}

// verdict is the exit code and reason as container runtimes give them: 128 plus the signal for a killed process.
func verdict(status syscall.WaitStatus, oom bool) (int32, string) {
	code := int32(status.ExitStatus())
	if status.Signaled() {
		code = 128 + int32(status.Signal())
	}
	switch {
	case oom && code == 137:
		return code, "OOMKilled"
	case code == 0:
		return code, "Completed"
	default:
		return code, "Error"
	}
}

// StopContainer asks, waits for timeout seconds, then kills. Stopping what is not running is fine.
func (r *Runtime) StopContainer(ctx context.Context, id string, timeout int64) error {
	c, err := r.findContainer(id)
	if errors.Is(err, errNotFound) {
		return nil
	}
	if !r.signal(c, stopSignal(c.config), timeout > 0) {
		return nil
	}
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Duration(timeout) * time.Second):
	}
	r.signal(c, syscall.SIGKILL, true)
	select {
	case <-c.done:
		return nil
	case <-time.After(10 * time.Second):
		return fmt.Errorf("container %s did not end within 10 s of SIGKILL", id)
	}
}

// signal says whether the container runs, and if so and wanted signals its first process. The lock keeps the PID its own.
func (r *Runtime) signal(c *container, signal syscall.Signal, wanted bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return false
	}
	if wanted {
		_ = syscall.Kill(c.pid, signal)
	}
	return true
}

func stopSignal(config *runtimeapi.ContainerConfig) syscall.Signal {
	name := strings.TrimPrefix(config.GetStopSignal().String(), "SIGNAL_")
	if number := unix.SignalNum(name); number != 0 {
		return number
	}
	return syscall.SIGTERM // what SIGNAL_RUNTIME_DEFAULT means
}
