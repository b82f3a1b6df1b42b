package node

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/kubernetes/pkg/kubelet/cadvisor"

	"tandem.dev/e2e/cluster/internal/config"
)

// machine is the node's hardware as declared; where the kubelet wants real numbers, the machine's disk.
type machine struct {
	name   string
	cores  int
	memory uint64
	dir    string
}

var _ cadvisor.Interface = machine{}

func newMachine(node config.Node, kind config.Kind, dir string) machine {
	return machine{name: node.Name, cores: int(kind.Resources.Cpu().Value()), memory: uint64(kind.Resources.Memory().Value()), dir: dir}
}

func (m machine) Start() error { return nil }

func (m machine) machineInfo() *machineInfo {
	return &machineInfo{NumCores: m.cores, MemoryCapacity: m.memory, MachineID: m.name, SystemUUID: m.name}
}

func (m machine) VersionInfo() (*versionInfo, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return nil, err
	}
	return &versionInfo{KernelVersion: unix.ByteSliceToString(name.Release[:]), ContainerOsVersion: "Tandem one-machine cluster"}, nil
}

// ContainerInfoV2 has one empty sample of any group: the kubelet's summaries want one of the node's own.
func (m machine) ContainerInfoV2(name string, _ requestOptions) (map[string]containerInfo, error) {
	sample := &containerStats{Timestamp: time.Now()}
	return map[string]containerInfo{name: {Stats: []*containerStats{sample}}}, nil
}

func (m machine) GetRequestedContainersInfo(string, requestOptions) (map[string]*requestedInfo, error) {
	return map[string]*requestedInfo{}, nil
}

func (m machine) ImagesFsInfo(context.Context) (fsInfo, error) { return m.disk() }
func (m machine) RootFsInfo() (fsInfo, error)                  { return m.disk() }
func (m machine) ContainerFsInfo(context.Context) (fsInfo, error) {
	return m.disk()
}
func (m machine) GetDirFsInfo(string) (fsInfo, error) { return m.disk() }

func (m machine) disk() (fsInfo, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(m.dir, &fs); err != nil {
		return fsInfo{}, err
	}
	size, inodes, free := uint64(fs.Bsize), fs.Files, fs.Ffree
	return fsInfo{
		Mountpoint: m.dir, Capacity: fs.Blocks * size, Available: fs.Bavail * size, Usage: (fs.Blocks - fs.Bfree) * size,
		Inodes: &inodes, InodesFree: &free,
	}, nil
}
