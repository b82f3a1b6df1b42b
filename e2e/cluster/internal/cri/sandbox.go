package cri

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"tandem.dev/e2e/cluster/internal/netspace"
)

// sandbox is a pod's share: an address, a /dev/shm, a resolv.conf. It runs no process of its own.
type sandbox struct {
	id      string
	config  *runtimeapi.PodSandboxConfig
	created time.Time
	dir     string
	ready   bool
	host    int           // its number in the node's address pool
	pod     *netspace.Pod // nil on the node's own network
}

func (s *sandbox) state() runtimeapi.PodSandboxState {
	if s.ready {
		return runtimeapi.PodSandboxState_SANDBOX_READY
	}
	return runtimeapi.PodSandboxState_SANDBOX_NOTREADY
}

func (s *sandbox) shm() string        { return filepath.Join(s.dir, "shm") }
func (s *sandbox) resolvConf() string { return filepath.Join(s.dir, "resolv.conf") }

// RunPodSandbox makes a pod's share ready.
func (r *Runtime) RunPodSandbox(_ context.Context, config *runtimeapi.PodSandboxConfig, _ string) (string, error) {
	id := newID()
	s := &sandbox{id: id, config: config, created: time.Now(), ready: true, dir: filepath.Join(r.options.Dir, "sandboxes", id)}
	if err := r.prepare(s); err != nil {
		r.release(s)
		return "", err
	}
	r.mu.Lock()
	r.sandboxes[id] = s
	r.mu.Unlock()
	return id, nil
}

func (r *Runtime) prepare(s *sandbox) error {
	if err := os.MkdirAll(s.shm(), 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", s.shm(), "tmpfs", 0, "size=64m,mode=1777"); err != nil {
		return fmt.Errorf("mount the pod's /dev/shm: %w", err)
	}
	if err := os.WriteFile(s.resolvConf(), []byte(resolvConf(s.config.GetDnsConfig())), 0o644); err != nil {
		return err
	}
	if dir := s.config.GetLogDirectory(); dir != "" {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if onNode(s.config) {
		return nil
	}
	host, err := r.addresses.take()
	if err != nil {
		return err
	}
	s.host = host
	s.pod, err = netspace.NewPod(s.id, r.options.Node.PodAddress(host))
	return err
}

func onNode(config *runtimeapi.PodSandboxConfig) bool {
	return config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE
}

func resolvConf(dns *runtimeapi.DNSConfig) string {
	var b strings.Builder
	for _, server := range dns.GetServers() {
		fmt.Fprintf(&b, "nameserver %s\n", server)
	}
	if len(dns.GetSearches()) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(dns.GetSearches(), " "))
	}
	if len(dns.GetOptions()) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(dns.GetOptions(), " "))
	}
	return b.String()
}

// release gives back what prepare took, as far as it came.
func (r *Runtime) release(s *sandbox) {
	if s.pod != nil {
		s.pod.Close()
		s.pod = nil
	}
	if s.host != 0 {
		r.addresses.give(s.host)
		s.host = 0
	}
	_ = unix.Unmount(s.shm(), unix.MNT_DETACH)
	_ = os.RemoveAll(s.dir)
}

// StopPodSandbox ends what still runs in the pod; its address stays until removal. Stopping twice is fine.
func (r *Runtime) StopPodSandbox(ctx context.Context, id string) error {
	s, err := r.findSandbox(id)
	if errors.Is(err, errNotFound) {
		return nil
	}
	for _, c := range r.containersOf(id) {
		if err := r.StopContainer(ctx, c.id, 0); err != nil {
			return err
		}
	}
	r.mu.Lock()
	s.ready = false
	r.mu.Unlock()
	return nil
}

// RemovePodSandbox removes the pod's share and its containers.
func (r *Runtime) RemovePodSandbox(ctx context.Context, id string) error {
	s, err := r.findSandbox(id)
	if errors.Is(err, errNotFound) {
		return nil
	}
	if err := r.StopPodSandbox(ctx, id); err != nil {
		return err
	}
	for _, c := range r.containersOf(id) {
		if err := r.RemoveContainer(ctx, c.id); err != nil {
			return err
		}
	}
	r.mu.Lock()
	delete(r.sandboxes, id)
	r.mu.Unlock()
	r.release(s)
	return nil
}

func (r *Runtime) containersOf(sandboxID string) []*container {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []*container
	for _, c := range r.containers {
		if c.sandbox.id == sandboxID {
			found = append(found, c)
		}
	}
	return found
}

// address is the pod's own, or the node's.
func (r *Runtime) address(s *sandbox) string {
	if onNode(s.config) {
		return r.options.Node.Address()
	}
	return r.options.Node.PodAddress(s.host)
}

// PodSandboxStatus tells the kubelet the pod's address.
func (r *Runtime) PodSandboxStatus(_ context.Context, id string, _ bool) (*runtimeapi.PodSandboxStatusResponse, error) {
	s, err := r.findSandbox(id)
	if err != nil {
		return nil, notFound(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return &runtimeapi.PodSandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{
		Id: s.id, Metadata: s.config.Metadata, State: s.state(), CreatedAt: s.created.UnixNano(),
		Network: &runtimeapi.PodSandboxNetworkStatus{Ip: r.address(s)},
		Linux:   &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{Options: s.config.GetLinux().GetSecurityContext().GetNamespaceOptions()}},
		Labels:  s.config.Labels, Annotations: s.config.Annotations,
	}}, nil
}

// ListPodSandbox lists sandboxes that match the filter.
func (r *Runtime) ListPodSandbox(_ context.Context, filter *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []*runtimeapi.PodSandbox
	for _, s := range r.sandboxes {
		if filter.GetId() != "" && filter.GetId() != s.id || filter.GetState() != nil && filter.State.State != s.state() ||
			!matches(filter.GetLabelSelector(), s.config.Labels) {
			continue
		}
		list = append(list, &runtimeapi.PodSandbox{
			Id: s.id, Metadata: s.config.Metadata, State: s.state(), CreatedAt: s.created.UnixNano(),
			Labels: s.config.Labels, Annotations: s.config.Annotations,
		})
	}
	return list, nil
}

func matches(selector, labels map[string]string) bool {
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}
	return true
}
