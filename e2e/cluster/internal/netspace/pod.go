package netspace

import (
	"fmt"
	"net"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"tandem.dev/e2e/cluster/internal/config"
	"tandem.dev/e2e/cluster/internal/spawn"
)

// gateway is the next hop of every pod: the same link-local address at the cluster's end of each pair.
var gateway = net.IPv4(169, 254, 1, 1)

// Pod is a pod's network namespace; it lives as long as File is open or a process is in it.
type Pod struct {
	Address string
	File    *os.File
	link    string
}

// NewPod makes a namespace with one address, attached to the calling process's namespace. id must be unique in it.
func NewPod(id, address string) (*Pod, error) {
	file, err := unnamed()
	if err != nil {
		return nil, err
	}
	pod := &Pod{Address: address, File: file, link: "pod" + id[:10]}
	if err := pod.attach(); err != nil {
		pod.Close()
		return nil, fmt.Errorf("attach pod address %s: %w", address, err)
	}
	return pod, nil
}

// unnamed makes a namespace that nothing on the machine lists.
func unnamed() (file *os.File, err error) {
	err = spawn.On(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		file, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	return file, err
}

func (p *Pod) attach() error {
	pair := &netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: p.link},
		PeerName:      "eth0",
		PeerNamespace: netlink.NsFd(p.File.Fd()),
	}
	if err := netlink.LinkAdd(pair); err != nil {
		return err
	}
	if err := p.outerEnd(); err != nil {
		return err
	}
	return p.innerEnd()
}

// outerEnd makes the pod reachable from the cluster's namespace.
func (p *Pod) outerEnd() error {
	link, err := netlink.LinkByName(p.link)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: host(gateway)}); err != nil {
		return err
	}
	// Probes and callers from the cluster's namespace show the API's address, not a link-local one.
	// Replace: a killed node's interfaces go a moment after it, and it may be back by then, with the same addresses.
	return netlink.RouteReplace(&netlink.Route{
		LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK,
		Dst: host(net.ParseIP(p.Address)), Src: net.ParseIP(config.APIAddress),
	})
}

// innerEnd sends everything the pod says to the gateway.
func (p *Pod) innerEnd() error {
	inside, err := netlink.NewHandleAt(netns.NsHandle(p.File.Fd()))
	if err != nil {
		return err
	}
	defer inside.Close()
	for _, name := range []string{"lo", "eth0"} {
		link, err := inside.LinkByName(name)
		if err != nil {
			return err
		}
		if err := inside.LinkSetUp(link); err != nil {
			return err
		}
	}
	eth0, err := inside.LinkByName("eth0")
	if err != nil {
		return err
	}
	if err := inside.AddrAdd(eth0, &netlink.Addr{IPNet: host(net.ParseIP(p.Address))}); err != nil {
		return err
	}
	index := eth0.Attrs().Index
	if err := inside.RouteAdd(&netlink.Route{LinkIndex: index, Scope: netlink.SCOPE_LINK, Dst: host(gateway)}); err != nil {
		return err
	}
	return inside.RouteAdd(&netlink.Route{LinkIndex: index, Gw: gateway})
}

// Close takes the pod off the network; both ends of the pair go at once.
func (p *Pod) Close() {
	if link, err := netlink.LinkByName(p.link); err == nil {
		_ = netlink.LinkDel(link)
	}
	p.File.Close()
}

func host(ip net.IP) *net.IPNet { return &net.IPNet{IP: ip, Mask: net.CIDRMask(32, 32)} }
