package cri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	utilexec "k8s.io/utils/exec"

	"tandem.dev/e2e/cluster/internal/spawn"
)

// streamed is what the streaming server may ask of the runtime.
type streamed struct{ runtime *Runtime }

var _ streamRuntime = streamed{}

// serveStreams listens where only the kubelet of this process is told: each URL it hands out is good for one use.
func serveStreams(r *Runtime) (streamServer, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	config := streamDefaults
	config.BaseURL = &url.URL{Scheme: "http", Host: listener.Addr().String()}
	server, err := newStreamServer(config, streamed{r})
	if err != nil {
		return nil, err
	}
	go func() { _ = http.Serve(listener, server) }() //nolint:gosec // within this machine, long streams are the point
	return server, nil
}

// Exec prepares a stream for `kubectl exec`.
func (r *Runtime) Exec(_ context.Context, req *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return r.streams.GetExec(req)
}

// PortForward prepares a stream for `kubectl port-forward`.
func (r *Runtime) PortForward(_ context.Context, req *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	return r.streams.GetPortForward(req)
}

func (s streamed) Exec(ctx context.Context, id string, argv []string, in io.Reader, out, errOut io.WriteCloser, tty bool, _ <-chan terminalSize) error {
	if tty && errOut == nil {
		errOut = out // no terminal here: the two outputs come as one, as they would from a terminal
	}
	err := s.runtime.exec(ctx, id, argv, in, out, errOut)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code, _ := verdict(exit.Sys().(syscall.WaitStatus), false)
		return utilexec.CodeExitError{Err: fmt.Errorf("command terminated with exit code %d", code), Code: int(code)}
	}
	return err
}

func (s streamed) Attach(context.Context, string, io.Reader, io.WriteCloser, io.WriteCloser, bool, <-chan terminalSize) error {
	return errors.New("attach is not supported here: use `kubectl logs -f` or `kubectl exec`")
}

// PortForward joins a stream to a port on the pod's own loopback, as container runtimes do.
func (s streamed) PortForward(_ context.Context, sandboxID string, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	sandbox, err := s.runtime.findSandbox(sandboxID)
	if err != nil {
		return err
	}
	connection, err := sandbox.dial(port)
	if err != nil {
		return fmt.Errorf("port-forward: %w", err)
	}
	defer connection.Close()
	go func() {
		_, _ = io.Copy(connection, stream)
		_ = connection.(*net.TCPConn).CloseWrite()
	}()
	_, err = io.Copy(stream, connection)
	return err
}

func (s *sandbox) dial(port int32) (connection net.Conn, err error) {
	dial := func() error {
		// A socket belongs to the namespace of the thread that makes it; a dial to an address makes it on this one.
		connection, err = net.Dial("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
		return err
	}
	if s.pod == nil {
		err = dial()
		return connection, err
	}
	err = spawn.On(dial, spawn.Enter(s.pod.File, unix.CLONE_NEWNET))
	return connection, err
}
