//go:build !kube135

package cri

// What differs between Kubernetes' minors is in this file and in kube_135.go.

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

type (
	streamServer  = streaming.Server
	streamRuntime = streaming.Runtime
	terminalSize  = remotecommand.TerminalSize
)

var streamDefaults, newStreamServer = streaming.DefaultConfig, streaming.NewServer

// Close does nothing: what the runtime holds ends with the process.
func (r *Runtime) Close(context.Context) error { return nil }

// Close has nothing to close.
func (i *Images) Close(context.Context) error { return nil }

func (unsupported) CheckpointPod(context.Context, *runtimeapi.CheckpointPodRequest) error {
	return no("checkpointing a pod")
}

func (unsupported) RestorePod(context.Context, *runtimeapi.RestorePodRequest) (*runtimeapi.RestorePodResponse, error) {
	return nil, no("restoring a pod")
}
