// Package cri is the container runtime under a kubelet: a sandbox is a network namespace, a container a process in a box.
//
// It lives in the kubelet's process and keeps its state in memory: when the node loses power, both are gone.
package cri

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"

	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"tandem.dev/e2e/cluster/internal/cgroup"
	"tandem.dev/e2e/cluster/internal/config"
)

// Options are what the runtime of one node needs to know.
type Options struct {
	Node   config.Node
	Tree   cgroup.Tree
	Dir    string // sandboxes and containers keep their files below
	Root   string // the repository
	Images map[string]config.Image
}

// Runtime implements the kubelet's view of a container runtime.
type Runtime struct {
	unsupported
	options   Options
	streams   streamServer
	addresses *pool

	mu         sync.Mutex
	sandboxes  map[string]*sandbox
	containers map[string]*container
}

var _ internalapi.RuntimeService = (*Runtime)(nil)

var errNotFound = errors.New("not found")

// New starts a runtime with nothing in it.
func New(options Options) (*Runtime, error) {
	r := &Runtime{
		options:    options,
		addresses:  newPool(),
		sandboxes:  map[string]*sandbox{},
		containers: map[string]*container{},
	}
	streams, err := serveStreams(r)
	if err != nil {
		return nil, fmt.Errorf("serve exec and port-forward: %w", err)
	}
	r.streams = streams
	return r, nil
}

// Version names the runtime.
func (r *Runtime) Version(context.Context, string) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: "tandem", RuntimeVersion: "1.0.0", RuntimeApiVersion: "v1"}, nil
}

// Status is ready from the start: there is nothing to wait for.
func (r *Runtime) Status(context.Context, bool) (*runtimeapi.StatusResponse, error) {
	return &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
		{Type: runtimeapi.RuntimeReady, Status: true},
		{Type: runtimeapi.NetworkReady, Status: true},
	}}}, nil
}

// UpdateRuntimeConfig hands over pod ranges on other clusters; here nodes have theirs already.
func (r *Runtime) UpdateRuntimeConfig(context.Context, *runtimeapi.RuntimeConfig) error { return nil }

// RuntimeConfig has nothing to add to the kubelet's own.
func (r *Runtime) RuntimeConfig(context.Context) (*runtimeapi.RuntimeConfigResponse, error) {
	return &runtimeapi.RuntimeConfigResponse{}, nil
}

func newID() string {
	id := make([]byte, 32)
	_, _ = rand.Read(id) // never fails, says its documentation
	return hex.EncodeToString(id)
}

func (r *Runtime) findSandbox(id string) (*sandbox, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s, ok := r.sandboxes[id]; ok {
		return s, nil
	}
	return nil, fmt.Errorf("sandbox %s: %w", id, errNotFound)
}

func (r *Runtime) findContainer(id string) (*container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c, ok := r.containers[id]; ok {
		return c, nil
	}
	return nil, fmt.Errorf("container %s: %w", id, errNotFound)
}
