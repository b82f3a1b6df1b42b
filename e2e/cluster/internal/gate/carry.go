package gate

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"tandem.dev/e2e/cluster/internal/config"
)

const dialTimeout = 10 * time.Second

// carry joins a connection from the host to one within the cluster, until both sides have ended.
func carry(outer *net.TCPConn, target func() (string, error)) {
	defer outer.Close()
	inner, err := dial(target)
	if err != nil {
		fmt.Fprintf(os.Stderr, "connection from %s: %v\n", outer.RemoteAddr(), err)
		return
	}
	defer inner.Close()
	var both sync.WaitGroup
	both.Go(func() { pour(inner, outer) })
	both.Go(func() { pour(outer, inner) })
	both.Wait()
}

func dial(target func() (string, error)) (*net.TCPConn, error) {
	address, err := target()
	if err != nil {
		return nil, err
	}
	connection, err := net.DialTimeout("tcp4", address, dialTimeout)
	if err != nil {
		return nil, err
	}
	return connection.(*net.TCPConn), nil
}

// pour copies one direction and passes its end on, so that each side may stop sending while it still receives.
func pour(to, from *net.TCPConn) {
	if _, err := io.Copy(to, from); err != nil {
		// One side broke: the other must not wait for more.
		_ = to.SetLinger(0)
		_ = errors.Join(to.Close(), from.Close())
		return
	}
	_ = to.CloseWrite()
}

// clusterAddress is the ClusterIP and port that a published port leads to now.
func (d *directory) clusterAddress(target config.ServicePort) (string, error) {
	service, err := d.services.Services(target.Namespace).Get(target.Name)
	if err != nil {
		return "", fmt.Errorf("published service %s/%s: %w", target.Namespace, target.Name, err)
	}
	if service.Spec.ClusterIP == "" || service.Spec.ClusterIP == v1.ClusterIPNone {
		return "", fmt.Errorf("published service %s/%s has no cluster IP", target.Namespace, target.Name)
	}
	port, err := portOf(service, target.Port)
	if err != nil {
		return "", err
	}
	return net.JoinHostPort(service.Spec.ClusterIP, port), nil
}

// portOf finds a named port; a number stands for itself.
func portOf(service *v1.Service, port string) (string, error) {
	if _, err := strconv.Atoi(port); err == nil {
		return port, nil
	}
	for _, p := range service.Spec.Ports {
		if p.Name == port {
			return strconv.Itoa(int(p.Port)), nil
		}
	}
	return "", fmt.Errorf("published service %s/%s has no port named %q", service.Namespace, service.Name, port)
}
