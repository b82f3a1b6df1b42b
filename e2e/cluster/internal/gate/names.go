package gate

import (
	"fmt"
	"net"
	"os"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
)

const (
	zone       = ".svc.cluster.local."
	answerTTL  = 2 // seconds; endpoints of headless services come and go
	largestUDP = 1232
)

// serveNames answers DNS questions about Services. There is no other world to ask: all else does not exist.
func serveNames(address string, d *directory) error {
	socket, err := net.ListenPacket("udp4", address)
	if err != nil {
		return fmt.Errorf("serve names: %w", err)
	}
	buffer := make([]byte, largestUDP)
	for {
		n, from, err := socket.ReadFrom(buffer)
		if err != nil {
			return fmt.Errorf("serve names: %w", err)
		}
		answer, err := d.answer(buffer[:n])
		if err != nil {
			fmt.Fprintf(os.Stderr, "question from %s: %v\n", from, err)
			continue
		}
		_, _ = socket.WriteTo(answer, from) // who does not get it asks again
	}
}

func (d *directory) answer(packet []byte) ([]byte, error) {
	var question dnsmessage.Message
	if err := question.Unpack(packet); err != nil {
		return nil, err
	}
	reply := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: question.ID, Response: true, Authoritative: true, RecursionDesired: question.RecursionDesired, RecursionAvailable: true},
		Questions: question.Questions,
	}
	if len(question.Questions) != 1 {
		reply.RCode = dnsmessage.RCodeFormatError
		return reply.Pack()
	}
	asked := question.Questions[0]
	addresses, exists := d.lookup(asked.Name.String())
	if !exists {
		reply.RCode = dnsmessage.RCodeNameError
		return reply.Pack()
	}
	if asked.Type == dnsmessage.TypeA {
		reply.Answers = records(asked.Name, addresses)
	}
	return reply.Pack()
}

func records(name dnsmessage.Name, addresses []string) []dnsmessage.Resource {
	var list []dnsmessage.Resource
	for _, address := range addresses {
		ip := net.ParseIP(address).To4()
		if ip == nil {
			continue
		}
		list = append(list, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: name, Class: dnsmessage.ClassINET, TTL: answerTTL},
			Body:   &dnsmessage.AResource{A: [4]byte(ip)},
		})
	}
	return list
}

// lookup follows the Kubernetes DNS specification for <service>.<namespace> and <pod>.<service>.<namespace>, IPv4 only.
func (d *directory) lookup(name string) (addresses []string, exists bool) {
	local, ok := strings.CutSuffix(strings.ToLower(name), zone)
	if !ok {
		return nil, false
	}
	parts := strings.Split(local, ".")
	var pod string
	if len(parts) == 3 {
		pod, parts = parts[0], parts[1:]
	}
	if len(parts) != 2 {
		return nil, false
	}
	service, err := d.services.Services(parts[1]).Get(parts[0])
	if err != nil {
		return nil, false
	}
	if pod == "" && service.Spec.ClusterIP != v1.ClusterIPNone {
		return []string{service.Spec.ClusterIP}, true
	}
	addresses = d.endpoints(service, pod)
	return addresses, pod == "" || len(addresses) > 0
}

// endpoints are the ready ones of a service, or those of one pod behind it.
func (d *directory) endpoints(service *v1.Service, pod string) []string {
	slices, err := d.slices.EndpointSlices(service.Namespace).List(labels.SelectorFromSet(labels.Set{discovery.LabelServiceName: service.Name}))
	if err != nil {
		return nil
	}
	var found []string
	for _, slice := range slices {
		for _, endpoint := range slice.Endpoints {
			ready := endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready
			named := endpoint.Hostname != nil && *endpoint.Hostname == pod
			if ready && (pod == "" || named) {
				found = append(found, endpoint.Addresses...)
			}
		}
	}
	return found
}
