package node

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm"

	"tandem.dev/e2e/cluster/internal/config"
)

// devices stands in for the kubelet's container manager: it offers the declared resources as device plugins would,
// and leaves control groups to the runtime.
type devices struct {
	cm.ContainerManager
	ephemeral resource.Quantity
}

// offered by the kubelet itself, from machine.
var ownResources = map[v1.ResourceName]bool{v1.ResourceCPU: true, v1.ResourceMemory: true, v1.ResourceEphemeralStorage: true}

func newDevices(kind config.Kind) devices {
	return devices{cm.NewStubContainerManagerWithDevicePluginResource(extended(kind.Resources)), ephemeral(kind.Resources)}
}

func extended(all v1.ResourceList) v1.ResourceList {
	list := v1.ResourceList{}
	for name, quantity := range all {
		if !ownResources[name] {
			list[name] = quantity
		}
	}
	return list
}

func ephemeral(all v1.ResourceList) resource.Quantity {
	if quantity, ok := all[v1.ResourceEphemeralStorage]; ok {
		return quantity
	}
	return resource.MustParse("64Gi")
}

// NewPodContainerManager knows of no group around a pod: only containers have limits.
func (d devices) NewPodContainerManager() cm.PodContainerManager {
	return podGroups{d.ContainerManager.NewPodContainerManager()}
}

type podGroups struct{ cm.PodContainerManager }

// GetPodCgroupConfig has zeros, "no limit": the kubelet then reports what the pod asks for. It follows each of these
// pointers without a look, and for a resize the configuration's own, too.
func (podGroups) GetPodCgroupConfig(*v1.Pod, v1.ResourceName) (*cm.ResourceConfig, error) {
	return &cm.ResourceConfig{Memory: new(int64), CPUShares: new(uint64), CPUQuota: new(int64), CPUPeriod: new(uint64)}, nil
}

// SetPodCgroupConfig has nothing to set; a resize goes on to the containers.
func (podGroups) SetPodCgroupConfig(klog.Logger, *v1.Pod, *cm.ResourceConfig) error { return nil }

// capacity has the storage that the stub would give as none, so that pods may ask for some.
func (d devices) capacity(isolated bool) v1.ResourceList {
	if !isolated {
		return v1.ResourceList{}
	}
	return v1.ResourceList{v1.ResourceEphemeralStorage: d.ephemeral}
}
