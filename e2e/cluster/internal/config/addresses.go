package config

import "fmt"

// The cluster's addresses. They exist in its network namespace only, so clusters side by side do not meet.
const (
	PodCIDR     = "10.244.0.0/16"
	ServiceCIDR = "10.96.0.0/16"
	// APIAddress is what the endpoints of service `kubernetes` name: EndpointSlices refuse loopback addresses.
	APIAddress = "10.244.255.1"
	// DNSAddress answers names of Services; pods find it in resolv.conf.
	DNSAddress = "10.244.255.2"
	// APIService is the first address of ServiceCIDR, which the API server gives to service `kubernetes`.
	APIService = "10.96.0.1"
	APIPort    = 6443
	// MaxNodes keeps node addresses below 10.244.255.255.
	MaxNodes = 200
)

// Address is where the node's kubelet listens.
func (n Node) Address() string { return fmt.Sprintf("10.244.255.%d", 10+n.Index) }

// PodAddress is the address number `host` of the node's own range, 10.244.<index>.0/24.
func (n Node) PodAddress(host int) string { return fmt.Sprintf("10.244.%d.%d", n.Index, host) }
