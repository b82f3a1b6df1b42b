//go:build kube135

package cri

// What differs between Kubernetes' minors is in this file and in kube_newest.go.

import (
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/kubelet/pkg/cri/streaming"
)

type (
	streamServer  = streaming.Server
	streamRuntime = streaming.Runtime
	terminalSize  = remotecommand.TerminalSize
)

var streamDefaults, newStreamServer = streaming.DefaultConfig, streaming.NewServer

// Close does nothing: what the runtime holds ends with the process.
func (r *Runtime) Close() error { return nil }

// Close has nothing to close.
func (i *Images) Close() error { return nil }
