package cri

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// unsupported answers the calls that this runtime has no use for in the way that the kubelet takes for "not here".
type unsupported struct{}

func no(what string) error {
	return status.Errorf(codes.Unimplemented, "%s is not supported by this runtime", what)
}

func (unsupported) Attach(context.Context, *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return nil, no("attach")
}

func (unsupported) CheckpointContainer(context.Context, *runtimeapi.CheckpointContainerRequest) error {
	return no("checkpointing a container")
}

func (unsupported) GetContainerEvents(context.Context, chan *runtimeapi.ContainerEventResponse, func(runtimeapi.RuntimeService_GetContainerEventsClient)) error {
	return no("container events")
}

func (unsupported) UpdatePodSandboxResources(context.Context, *runtimeapi.UpdatePodSandboxResourcesRequest) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	return &runtimeapi.UpdatePodSandboxResourcesResponse{}, nil
}

func (unsupported) PodSandboxStats(context.Context, string) (*runtimeapi.PodSandboxStats, error) {
	return nil, no("statistics of a pod")
}

func (unsupported) ListPodSandboxStats(context.Context, *runtimeapi.PodSandboxStatsFilter) ([]*runtimeapi.PodSandboxStats, error) {
	return nil, no("statistics of pods")
}

func (unsupported) ListMetricDescriptors(context.Context) ([]*runtimeapi.MetricDescriptor, error) {
	return nil, nil
}

func (unsupported) ListPodSandboxMetrics(context.Context) ([]*runtimeapi.PodSandboxMetrics, error) {
	return nil, nil
}
