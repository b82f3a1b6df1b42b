package cri

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"tandem.dev/e2e/cluster/internal/cgroup"
)

// container is one run of a command. The kubelet makes a new one for each restart.
type container struct {
	id      string
	image   string
	config  *runtimeapi.ContainerConfig
	sandbox *sandbox
	group   cgroup.Group
	scratch string
	log     *logFile

	done   chan struct{}
	limits *runtimeapi.LinuxContainerResources

	// Below: guarded by the runtime's lock.
	state                      runtimeapi.ContainerState
	created, started, finished time.Time
	pid                        int
	exitCode                   int32
	reason, message            string
}

// notFound is what the kubelet takes for "already gone".
func notFound(err error) error {
	if errors.Is(err, errNotFound) {
		return status.Error(codes.NotFound, err.Error())
	}
	return err
}

// CreateContainer checks and notes a container; nothing runs yet.
func (r *Runtime) CreateContainer(_ context.Context, sandboxID string, config *runtimeapi.ContainerConfig, _ *runtimeapi.PodSandboxConfig) (string, error) {
	s, err := r.findSandbox(sandboxID)
	if err != nil {
		return "", notFound(err)
	}
	name := config.GetMetadata().GetName()
	if len(config.Command) == 0 {
		return "", fmt.Errorf("container %q has no command: images have no entry point here, so every container sets `command`", name)
	}
	image, err := NewImages(r.options).find(config.GetImage().GetImage())
	if err != nil {
		return "", err
	}
	id := newID()
	c := &container{
		id: id, image: image, config: config, sandbox: s, created: time.Now(), done: make(chan struct{}),
		group:   r.options.Tree.Container(r.options.Node.Name, id[:16]),
		scratch: filepath.Join(r.options.Dir, "containers", id[:16]),
		limits:  config.GetLinux().GetResources(),
		state:   runtimeapi.ContainerState_CONTAINER_CREATED,
	}
	if err := c.prepare(); err != nil {
		c.release()
		return "", fmt.Errorf("container %q: %w", name, err)
	}
	r.mu.Lock()
	r.containers[id] = c
	r.mu.Unlock()
	return id, nil
}

func (c *container) prepare() (err error) {
	if err := os.MkdirAll(c.scratch, 0o755); err != nil {
		return err
	}
	if err := c.group.Create(); err != nil {
		return err
	}
	if err := c.group.Limit(limits(c.limits)); err != nil {
		return err
	}
	c.log, err = openLog(c.logPath())
	return err
}

func (c *container) logPath() string {
	return filepath.Join(c.sandbox.config.GetLogDirectory(), c.config.GetLogPath())
}

func (c *container) release() {
	if c.log != nil {
		c.log.Close()
	}
	_ = c.group.Remove()
	_ = os.RemoveAll(c.scratch)
}

func limits(r *runtimeapi.LinuxContainerResources) cgroup.Limits {
	return cgroup.Limits{CPUQuota: r.GetCpuQuota(), CPUPeriod: r.GetCpuPeriod(), CPUShares: r.GetCpuShares(), MemoryBytes: r.GetMemoryLimitInBytes()}
}

// RemoveContainer forgets a container, and ends it first if need be.
func (r *Runtime) RemoveContainer(ctx context.Context, id string) error {
	c, err := r.findContainer(id)
	if errors.Is(err, errNotFound) {
		return nil
	}
	if err := r.StopContainer(ctx, id, 0); err != nil {
		return err
	}
	r.mu.Lock()
	delete(r.containers, id)
	r.mu.Unlock()
	c.release()
	return nil
}

// UpdateContainerResources changes the limits of a running container.
func (r *Runtime) UpdateContainerResources(_ context.Context, id string, resources *runtimeapi.ContainerResources) error {
	c, err := r.findContainer(id)
	if err != nil {
		return notFound(err)
	}
	if err := c.group.Limit(limits(resources.GetLinux())); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c.limits = resources.GetLinux()
	return nil
}

// ReopenContainerLog goes on in a new file after the kubelet has moved the old one away.
func (r *Runtime) ReopenContainerLog(_ context.Context, id string) error {
	c, err := r.findContainer(id)
	if err != nil {
		return notFound(err)
	}
	return c.log.Reopen()
}

// ListContainers lists containers that match the filter.
func (r *Runtime) ListContainers(_ context.Context, filter *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []*runtimeapi.Container
	for _, c := range r.containers {
		if filter.GetId() != "" && filter.GetId() != c.id || filter.GetState() != nil && filter.State.State != c.state ||
			filter.GetPodSandboxId() != "" && filter.GetPodSandboxId() != c.sandbox.id ||
			!matches(filter.GetLabelSelector(), c.config.Labels) {
			continue
		}
		list = append(list, &runtimeapi.Container{
			Id: c.id, PodSandboxId: c.sandbox.id, Metadata: c.config.Metadata, Image: &runtimeapi.ImageSpec{Image: c.image}, ImageRef: imageID(c.image),
			ImageId: imageID(c.image), State: c.state, CreatedAt: c.created.UnixNano(), Labels: c.config.Labels, Annotations: c.config.Annotations,
		})
	}
	return list, nil
}

// ContainerStatus is all that is known of a container.
func (r *Runtime) ContainerStatus(_ context.Context, id string, _ bool) (*runtimeapi.ContainerStatusResponse, error) {
	c, err := r.findContainer(id)
	if err != nil {
		return nil, notFound(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{
		Id: c.id, Metadata: c.config.Metadata, State: c.state,
		CreatedAt: c.created.UnixNano(), StartedAt: nanos(c.started), FinishedAt: nanos(c.finished),
		ExitCode: c.exitCode, Reason: c.reason, Message: c.message,
		Image: &runtimeapi.ImageSpec{Image: c.image}, ImageRef: imageID(c.image), ImageId: imageID(c.image),
		Labels: c.config.Labels, Annotations: c.config.Annotations, Mounts: c.config.Mounts, LogPath: c.logPath(),
		Resources: &runtimeapi.ContainerResources{Linux: c.limits},
	}}, nil
}

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}
