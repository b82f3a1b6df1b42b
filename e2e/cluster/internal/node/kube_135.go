//go:build kube135

package node

// What differs between Kubernetes' minors is in this file and in kube_newest.go.

import (
	"context"
	"crypto/tls"

	cadvisorv1 "github.com/google/cadvisor/info/v1"
	cadvisorv2 "github.com/google/cadvisor/info/v2"
	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/kubelet"
	"k8s.io/kubernetes/pkg/kubelet/server"
	kubeletutil "k8s.io/kubernetes/pkg/kubelet/util"
)

type (
	machineInfo    = cadvisorv1.MachineInfo
	versionInfo    = cadvisorv1.VersionInfo
	fsInfo         = cadvisorv2.FsInfo
	requestOptions = cadvisorv2.RequestOptions
	containerInfo  = cadvisorv2.ContainerInfo
	containerStats = cadvisorv2.ContainerStats
	requestedInfo  = cadvisorv1.ContainerInfo
)

// MachineInfo is what the node has.
func (m machine) MachineInfo() (*machineInfo, error) { return m.machineInfo(), nil }

// GetCapacity is what the kubelet adds to the machine's own figures.
func (d devices) GetCapacity(isolated bool) v1.ResourceList { return d.capacity(isolated) }

func serveAs(deps *kubelet.Dependencies, serving *tls.Config) {
	deps.TLSOptions = &server.TLSOptions{Config: serving}
}

func newStartupTracker(context.Context) kubeletutil.NodeStartupLatencyTracker {
	return kubeletutil.NewNodeStartupLatencyTracker()
}
