package ops

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"tandem.dev/e2e/cluster/internal/cgroup"
	"tandem.dev/e2e/cluster/internal/config"
	"tandem.dev/e2e/cluster/internal/control"
	"tandem.dev/e2e/cluster/internal/netspace"
)

// UpRequest is what `up` was asked for.
type UpRequest struct {
	Dir, ConfigPath, Root string
	Port                  int
}

// Up starts a cluster and returns when it can be used. Where one is up already it changes nothing.
func Up(request UpRequest) error {
	began := time.Now()
	state, err := plan(request)
	if err != nil {
		return err
	}
	unlock, err := lock(state.Dir)
	if err != nil {
		return err
	}
	defer unlock()
	if old, err := config.ReadState(state.Dir); err == nil {
		return alreadyUp(old)
	}
	if err := start(state); err != nil {
		return errors.Join(err, fmt.Errorf("not up: see %s, then end what runs with `cluster down --dir %s`", state.Path("logs"), request.Dir))
	}
	fmt.Printf("up in %.1f s: %d nodes ready\nexport KUBECONFIG=%s\nip netns exec %s … runs a command inside\n",
		time.Since(began).Seconds(), len(state.Nodes), state.Path("kubeconfig"), state.ID())
	return nil
}

// plan decides everything before anything is started.
func plan(request UpRequest) (*config.State, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("up needs root: it makes network namespaces, mounts and control groups")
	}
	declared, err := config.Load(request.ConfigPath)
	if err != nil {
		return nil, err
	}
	root := request.Root
	if root == "" {
		if root, err = config.RepoRoot(request.ConfigPath); err != nil {
			return nil, err
		}
	}
	dir, err := resolve(request.Dir)
	if err != nil {
		return nil, err
	}
	tree, err := cgroup.NewTree(config.ID(dir))
	if err != nil {
		return nil, err
	}
	state := &config.State{Config: *declared, Dir: dir, Port: request.Port, Tree: tree}
	state.Root, err = filepath.Abs(root)
	return state, err
}

// resolve makes the folder and gives it the one name by which its cluster is known.
func resolve(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	absolute, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(absolute)
}

func alreadyUp(state *config.State) error {
	if !state.Up {
		return fmt.Errorf("an earlier start of the cluster in %s was cut short: end it with `cluster down` first", state.Dir)
	}
	if err := apiReady(state); err != nil {
		return fmt.Errorf("a cluster in %s was started and does not answer (%w): end it with `cluster down` first", state.Dir, err)
	}
	fmt.Printf("already up\nexport KUBECONFIG=%s\n", state.Path("kubeconfig"))
	return nil
}

func start(state *config.State) error {
	// First the host's ports: that one is taken is the likeliest reason to stop, and nothing is there yet to clean up.
	sockets, err := listen(state)
	if err != nil {
		return err
	}
	defer closeAll(sockets)
	if err := prepare(state); err != nil {
		return err
	}
	if err := startControl(state, sockets); err != nil {
		return err
	}
	for _, node := range state.Nodes {
		if err := startNode(state, node); err != nil {
			return err
		}
	}
	if err := waitNodes(state); err != nil {
		return err
	}
	state.Up = true
	return state.Save()
}

// prepare makes all that is not a process. The state comes first: from then on `down` knows what there may be.
func prepare(state *config.State) error {
	if err := os.MkdirAll(state.Path("logs"), 0o755); err != nil {
		return err
	}
	if err := state.Save(); err != nil {
		return err
	}
	if err := netspace.Create(state.ID()); err != nil {
		return err
	}
	if err := netspace.AddAddressIn(state.ID(), config.DNSAddress); err != nil {
		return err
	}
	if err := os.WriteFile(state.Path("netns"), []byte(state.ID()+"\n"), 0o644); err != nil {
		return err
	}
	return credentials(state)
}

func startControl(state *config.State, sockets []*os.File) error {
	if err := daemon(state, Gate, sockets...); err != nil {
		return err
	}
	for _, part := range control.Parts {
		if err := daemon(state, part.Name); err != nil {
			return err
		}
		if part.Name == "apiserver" {
			if err := waitAPI(state); err != nil {
				return err
			}
		}
	}
	return nil
}

func startNode(state *config.State, node config.Node) error {
	if err := netspace.AddAddressIn(state.ID(), node.Address()); err != nil {
		return err
	}
	if err := nodeCredentials(state, node); err != nil {
		return err
	}
	return daemon(state, nodePrefix+node.Name)
}

// listen opens the ports of the host: the API server's and the published ones, in this order.
func listen(state *config.State) ([]*os.File, error) {
	addresses := []string{fmt.Sprintf("127.0.0.1:%d", state.Port)}
	for _, publish := range state.Publish {
		addresses = append(addresses, publish.Host)
	}
	var sockets []*os.File
	for _, address := range addresses {
		socket, err := listenAt(address)
		if err != nil {
			closeAll(sockets)
			return nil, err
		}
		sockets = append(sockets, socket)
	}
	return sockets, nil
}

func listenAt(address string) (*os.File, error) {
	listener, err := net.Listen("tcp4", address)
	if err != nil {
		return nil, fmt.Errorf("open the host's port %s: %w", address, err)
	}
	defer listener.Close()
	return listener.(*net.TCPListener).File()
}

func closeAll(files []*os.File) {
	for _, file := range files {
		file.Close()
	}
}
