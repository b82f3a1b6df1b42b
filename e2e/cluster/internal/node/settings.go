package node

import (
	"path/filepath"
	"time"

	"k8s.io/kubernetes/cmd/kubelet/app/options"

	"tandem.dev/e2e/cluster/internal/config"
)

const kubeletPort = 10250

// settings are the kubelet's: its defaults, but for where it lives, what it must leave alone, and how often it reports.
func settings(state *config.State, node config.Node, kind config.Kind) (*options.KubeletServer, error) {
	c, err := options.NewKubeletConfiguration()
	if err != nil {
		return nil, err
	}
	dir := state.NodeDir(node.Name)
	c.Address, c.Port = node.Address(), kubeletPort
	c.PodLogsDir = filepath.Join(dir, "logs")
	c.VolumePluginDir = filepath.Join(dir, "plugins")
	c.ClusterDNS, c.ClusterDomain = []string{config.DNSAddress}, "cluster.local"
	c.TLSCertFile, c.TLSPrivateKeyFile = state.Path("pki", "node-"+node.Name+".crt"), state.Path("pki", "node-"+node.Name+".key")
	c.RegisterWithTaints = kind.Taints

	// Groups are the runtime's business: the kubelet's own manager would take over the machine's.
	c.FailCgroupV1, c.CgroupsPerQOS, c.EnforceNodeAllocatable = false, false, nil
	// Disk and memory are the machine's, and others use them too: a node here never evicts for them.
	c.EvictionHard, c.VolumeStatsAggPeriod.Duration = map[string]string{}, -1

	// The kubelet says CrashLoopBackOff only when it looks at a pod again, and in a back-off it looks no sooner than this.
	c.SyncFrequency.Duration = 3 * time.Second
	// Often enough that a node is seen to be lost within control.NodeGrace.
	c.NodeStatusUpdateFrequency.Duration = 2 * time.Second
	c.NodeLeaseDurationSeconds = 8

	f := options.NewKubeletFlags()
	f.RootDirectory = filepath.Join(dir, "kubelet")
	f.HostnameOverride, f.NodeIP, f.NodeLabels = node.Name, node.Address(), kind.Labels
	return &options.KubeletServer{KubeletFlags: *f, KubeletConfiguration: *c}, nil
}
