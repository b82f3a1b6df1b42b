// Package box turns a process into a container: a root filesystem of its own over the machine's, the pod's mounts, its user.
//
// The runtime starts this same binary in new mount, PID and UTS namespaces; Become then prepares them and gives way to
// the container's command, which is PID 1: when it ends, the kernel ends all that it started.
package box

import (
	"encoding/json"
	"os"
)

// Mount binds a path of the machine at a path of the container.
type Mount struct {
	From, To string
	ReadOnly bool
}

// Spec is all that a container's first process must know.
type Spec struct {
	Hostname string
	Scratch  string // an empty folder; what the container writes is held there, in memory
	Keep     []string
	Shm      string // the pod's /dev/shm
	Mounts   []Mount
	Argv     []string
	Env      []string
	Dir      string
	User     User

	ReadOnlyRoot bool
	NoNewPrivs   bool
	ResolvConf   string
}

// User is whom the command runs as.
type User struct {
	UID    int
	GID    int
	Groups []int
}

// The files that a box is started with, besides the usual three.
const (
	specFD   = 3
	reportFD = 4
)

// Files are the extra files for the process that will Become the container, in the order that it expects.
func Files(spec, report *os.File) []*os.File { return []*os.File{spec, report} }

func readSpec() (*Spec, error) {
	var spec Spec
	file := os.NewFile(specFD, "spec")
	defer file.Close()
	return &spec, json.NewDecoder(file).Decode(&spec)
}
