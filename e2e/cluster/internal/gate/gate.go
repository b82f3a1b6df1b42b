// Package gate is how the host gets into the cluster, and how pods find Services by name.
//
// The listening sockets were made in the host's network namespace and handed over; the process is in the cluster's.
package gate

import (
	"fmt"
	"net"
	"os"
	"time"

	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/clientcmd"

	"tandem.dev/e2e/cluster/internal/config"
)

// firstFD is the first of the handed-over sockets: the API server's, then one for each `publish`, in order.
const firstFD = 3

// directory knows the cluster's Services and what is behind them, as far as the API server has told.
type directory struct {
	services corelisters.ServiceLister
	slices   discoverylisters.EndpointSliceLister
}

// Run serves until the process is killed.
func Run(state *config.State) error {
	directory, synced, err := watch(state)
	if err != nil {
		return err
	}
	api := fmt.Sprintf("%s:%d", config.APIAddress, config.APIPort)
	if err := serve(firstFD, func() (string, error) { return api, nil }); err != nil {
		return err
	}
	for i, publish := range state.Publish {
		target, err := publish.Target()
		if err != nil {
			return err
		}
		if err := serve(firstFD+1+i, func() (string, error) { return directory.clusterAddress(target) }); err != nil {
			return err
		}
	}
	go keepProxy(state, synced)
	return serveNames(net.JoinHostPort(config.DNSAddress, "53"), directory)
}

// watch starts following the API server; it need not be up yet. synced waits until all is known.
func watch(state *config.State) (d *directory, synced func(), err error) {
	rest, err := clientcmd.BuildConfigFromFlags("", state.Path("pki", "proxy.kubeconfig"))
	if err != nil {
		return nil, nil, err
	}
	client, err := clientset.NewForConfig(rest)
	if err != nil {
		return nil, nil, err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	d = &directory{
		services: factory.Core().V1().Services().Lister(),
		slices:   factory.Discovery().V1().EndpointSlices().Lister(),
	}
	factory.Start(nil)
	return d, func() { factory.WaitForCacheSync(nil) }, nil
}

// serve takes connections from a handed-over socket and carries each to where target says then.
func serve(fd int, target func() (string, error)) error {
	file := os.NewFile(uintptr(fd), "published port")
	listener, err := net.FileListener(file)
	if err != nil {
		return fmt.Errorf("take over socket %d: %w", fd, err)
	}
	file.Close()
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				fmt.Fprintln(os.Stderr, "accept:", err)
				time.Sleep(100 * time.Millisecond) // too many open files, for one, goes away again
				continue
			}
			go carry(connection.(*net.TCPConn), target)
		}
	}()
	return nil
}
