package cri

import (
	"context"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ContainerStats is what one container uses.
func (r *Runtime) ContainerStats(_ context.Context, id string) (*runtimeapi.ContainerStats, error) {
	c, err := r.findContainer(id)
	if err != nil {
		return nil, notFound(err)
	}
	return c.stats(), nil
}

// ListContainerStats is what running containers use.
func (r *Runtime) ListContainerStats(_ context.Context, filter *runtimeapi.ContainerStatsFilter) ([]*runtimeapi.ContainerStats, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []*runtimeapi.ContainerStats
	for _, c := range r.containers {
		if c.state != runtimeapi.ContainerState_CONTAINER_RUNNING || filter.GetId() != "" && filter.GetId() != c.id ||
			filter.GetPodSandboxId() != "" && filter.GetPodSandboxId() != c.sandbox.id {
			continue
		}
		list = append(list, c.stats())
	}
	return list, nil
}

func (c *container) stats() *runtimeapi.ContainerStats {
	usage, now := c.group.Usage(), time.Now().UnixNano()
	return &runtimeapi.ContainerStats{
		Attributes: &runtimeapi.ContainerAttributes{Id: c.id, Metadata: c.config.Metadata, Labels: c.config.Labels, Annotations: c.config.Annotations},
		Cpu:        &runtimeapi.CpuUsage{Timestamp: now, UsageCoreNanoSeconds: &runtimeapi.UInt64Value{Value: usage.CPUNanoseconds}},
		Memory: &runtimeapi.MemoryUsage{
			Timestamp:       now,
			WorkingSetBytes: &runtimeapi.UInt64Value{Value: usage.MemoryBytes},
			UsageBytes:      &runtimeapi.UInt64Value{Value: usage.MemoryBytes},
		},
		WritableLayer: &runtimeapi.FilesystemUsage{Timestamp: now, UsedBytes: &runtimeapi.UInt64Value{}, InodesUsed: &runtimeapi.UInt64Value{}},
	}
}
