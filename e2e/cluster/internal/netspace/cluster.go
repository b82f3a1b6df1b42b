// Package netspace makes the cluster's network namespace, and one in it for each pod.
//
// A pod's namespace hangs off the cluster's by a pair of virtual interfaces and is routed, not bridged: every packet
// passes the cluster's namespace, where kube-proxy's rules are.
package netspace

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"tandem.dev/e2e/cluster/internal/config"
	"tandem.dev/e2e/cluster/internal/spawn"
)

const pins = "/run/netns/"

// Create makes the namespace under a name that `ip netns exec` knows.
func Create(name string) error {
	if err := ip("netns", "add", name); err != nil {
		return err
	}
	return spawn.On(prepare, spawn.EnterPath(pins+name, unix.CLONE_NEWNET))
}

func prepare() error {
	if err := linkUp("lo"); err != nil {
		return err
	}
	if err := AddAddress(config.APIAddress); err != nil {
		return err
	}
	if err := routeServices(); err != nil {
		return err
	}
	// This thread's view of /proc/sys/net is the namespace's own.
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
		return fmt.Errorf("let the cluster's namespace forward packets: %w", err)
	}
	return nil
}

// routeServices lets processes of this namespace start towards ClusterIPs: the kernel wants a route before kube-proxy's
// rules get to choose the real destination.
func routeServices() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	_, services, err := net.ParseCIDR(config.ServiceCIDR)
	if err != nil {
		return err
	}
	route := &netlink.Route{LinkIndex: lo.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: services, Src: net.ParseIP(config.APIAddress)}
	if err := netlink.RouteAdd(route); err != nil {
		return fmt.Errorf("route %s: %w", config.ServiceCIDR, err)
	}
	return nil
}

// AddAddress gives the calling thread's namespace an address of its own, reachable from all pods.
func AddAddress(address string) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	addr, err := netlink.ParseAddr(address + "/32")
	if err != nil {
		return err
	}
	if err := netlink.AddrReplace(lo, addr); err != nil {
		return fmt.Errorf("add address %s: %w", address, err)
	}
	return nil
}

// AddAddressIn is AddAddress in the namespace of that name.
func AddAddressIn(name, address string) error {
	return spawn.On(func() error { return AddAddress(address) }, spawn.EnterPath(pins+name, unix.CLONE_NEWNET))
}

// Delete removes the namespace's name; the namespace ends with its last process. That there is none is fine.
func Delete(name string) error {
	if _, err := os.Lstat(pins + name); os.IsNotExist(err) {
		return nil
	}
	return ip("netns", "delete", name)
}

func linkUp(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find interface %s: %w", name, err)
	}
	return netlink.LinkSetUp(link)
}

func ip(args ...string) error {
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}
