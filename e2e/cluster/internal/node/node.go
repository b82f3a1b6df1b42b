// Package node is one node: a real kubelet over the runtime of package cri, in one process.
package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	kubeletapp "k8s.io/kubernetes/cmd/kubelet/app"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	"k8s.io/kubernetes/pkg/kubelet"
	kubeletutil "k8s.io/kubernetes/pkg/kubelet/util"
	"k8s.io/kubernetes/pkg/util/oom"

	"tandem.dev/e2e/cluster/internal/config"
	"tandem.dev/e2e/cluster/internal/cri"
)

// Run is a node until it is killed.
func Run(name string, state *config.State) error {
	node, err := state.Find(name)
	if err != nil {
		return err
	}
	kind, err := state.KindOf(node.Kind)
	if err != nil {
		return err
	}
	if err := ownMounts(); err != nil {
		return err
	}
	server, err := settings(state, node, kind)
	if err != nil {
		return err
	}
	deps, err := dependencies(state, node, kind, server)
	if err != nil {
		return fmt.Errorf("node %s: %w", name, err)
	}
	if err := kubeletapp.RunKubelet(context.Background(), server, deps); err != nil {
		return fmt.Errorf("node %s: run the kubelet: %w", name, err)
	}
	select {}
}

// ownMounts keeps what kubelet and runtime mount inside this process's namespace: it goes when the node goes, however it goes.
func ownMounts() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts to this node: %w", err)
	}
	// The kubelet links all logs in /var/log/containers, whatever it is told.
	if err := unix.Mount("tmpfs", "/var/log", "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount the node's /var/log: %w", err)
	}
	return os.Mkdir("/var/log/containers", 0o755)
}

func dependencies(state *config.State, node config.Node, kind config.Kind, server *options.KubeletServer) (*kubelet.Dependencies, error) {
	ctx := context.Background()
	deps, err := kubeletapp.UnsecuredDependencies(ctx, server, utilfeature.DefaultFeatureGate)
	if err != nil {
		return nil, err
	}
	if err := connect(state, node, deps); err != nil {
		return nil, err
	}
	serving, err := serveTo(state, node)
	if err != nil {
		return nil, err
	}
	serveAs(deps, serving)
	runtime := cri.Options{
		Node: node, Tree: state.Tree, Dir: filepath.Join(state.NodeDir(node.Name), "runtime"), Root: state.Root, Images: state.Images,
	}
	if err := os.MkdirAll(runtime.Dir, 0o755); err != nil {
		return nil, err
	}
	if deps.RemoteRuntimeService, err = cri.New(runtime); err != nil {
		return nil, err
	}
	deps.RemoteImageService = cri.NewImages(runtime)
	deps.ContainerManager = newDevices(kind)
	deps.CAdvisorInterface = newMachine(node, kind, state.Dir)
	deps.OOMAdjuster = oom.NewFakeOOMAdjuster() // nodes are not worth more than the machine's other processes
	deps.PodStartupLatencyTracker = kubeletutil.NewPodStartupLatencyTracker()
	deps.NodeStartupLatencyTracker = newStartupTracker(ctx)
	return deps, nil
}

// connect gives the kubelet its clients, as system:node:<name>.
func connect(state *config.State, node config.Node, deps *kubelet.Dependencies) error {
	rest, err := clientcmd.BuildConfigFromFlags("", Kubeconfig(state, node.Name))
	if err != nil {
		return err
	}
	rest.QPS, rest.Burst = 50, 100 // the kubelet's defaults
	client, err := clientset.NewForConfig(rest)
	if err != nil {
		return err
	}
	deps.KubeClient, deps.HeartbeatClient, deps.EventClient = client, client, client.CoreV1()
	return nil
}

// Kubeconfig is the file by which the node's kubelet reaches the API server.
func Kubeconfig(state *config.State, name string) string {
	return state.Path("pki", "node-"+name+".kubeconfig")
}

// serveTo lets in the API server and nobody else: it shows a certificate of the cluster's authority.
func serveTo(state *config.State, node config.Node) (*tls.Config, error) {
	name := state.Path("pki", "node-"+node.Name)
	pair, err := tls.LoadX509KeyPair(name+".crt", name+".key")
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(state.Path("pki", "ca.crt"))
	if err != nil {
		return nil, err
	}
	callers := x509.NewCertPool()
	callers.AppendCertsFromPEM(ca)
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: callers}, nil
}
