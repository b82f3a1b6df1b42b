//go:build !kube135

package node

// What differs between Kubernetes' minors is in this file and in kube_135.go.

import (
	"context"
	"crypto/tls"

	cadvisorapi "github.com/google/cadvisor/lib/model"
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet"
	kubeletutil "k8s.io/kubernetes/pkg/kubelet/util"
)

type (
	machineInfo    = cadvisorapi.MachineInfo
	versionInfo    = cadvisorapi.VersionInfo
	fsInfo         = cadvisorapi.FsInfo
	requestOptions = cadvisorapi.RequestOptions
	containerInfo  = cadvisorapi.ContainerInfo
	containerStats = cadvisorapi.ContainerStats
	requestedInfo  = cadvisorapi.ContainerInfo
)

// MachineInfo is what the node has.
func (m machine) MachineInfo(klog.Logger) (*machineInfo, error) { return m.machineInfo(), nil }

// GetCapacity is what the kubelet adds to the machine's own figures.
func (d devices) GetCapacity(_ klog.Logger, isolated bool) v1.ResourceList {
	return d.capacity(isolated)
}

func serveAs(deps *kubelet.Dependencies, serving *tls.Config) { deps.TLSConfig = serving }

func newStartupTracker(ctx context.Context) kubeletutil.NodeStartupLatencyTracker {
	return kubeletutil.NewNodeStartupLatencyTracker(klog.FromContext(ctx))
}
