package gate

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"

	"tandem.dev/e2e/cluster/internal/config"
)

func example(t *testing.T) *directory {
	t.Helper()
	services, slices := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}),
		cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	pod0, no := "pod-0", false
	for _, service := range []*v1.Service{
		{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "ns"}, Spec: v1.ServiceSpec{ClusterIP: "10.96.0.7", Ports: []v1.ServicePort{{Name: "http", Port: 80}}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "set", Namespace: "ns"}, Spec: v1.ServiceSpec{ClusterIP: v1.ClusterIPNone}},
	} {
		if err := services.Add(service); err != nil {
			t.Fatal(err)
		}
	}
	if err := slices.Add(&discovery.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "set-1", Namespace: "ns", Labels: map[string]string{discovery.LabelServiceName: "set"}},
		Endpoints: []discovery.Endpoint{
			{Addresses: []string{"10.244.1.2"}, Hostname: &pod0},
			{Addresses: []string{"10.244.1.3"}, Conditions: discovery.EndpointConditions{Ready: &no}},
		},
	}); err != nil {
		t.Fatal(err)
	}
	return &directory{services: corelisters.NewServiceLister(services), slices: discoverylisters.NewEndpointSliceLister(slices)}
}

func TestLookup(t *testing.T) {
	d := example(t)
	for name, c := range map[string]struct {
		want   string
		exists bool
	}{
		"web.ns.svc.cluster.local.":       {"10.96.0.7", true},
		"WEB.ns.svc.cluster.local.":       {"10.96.0.7", true},
		"set.ns.svc.cluster.local.":       {"10.244.1.2", true},
		"pod-0.set.ns.svc.cluster.local.": {"10.244.1.2", true},
		"pod-1.set.ns.svc.cluster.local.": {"", false},
		"web.other.svc.cluster.local.":    {"", false},
		"ns.svc.cluster.local.":           {"", false},
		"web.ns.":                         {"", false},
	} {
		t.Run(name, func(t *testing.T) {
			addresses, exists := d.lookup(name)
			if got := strings.Join(addresses, " "); got != c.want || exists != c.exists {
				t.Errorf("got %q, %v", got, exists)
			}
		})
	}
}

func TestClusterAddress(t *testing.T) {
	d := example(t)
	for name, c := range map[string]struct{ name, port, want, wrong string }{
		"by number":    {"web", "8000", "10.96.0.7:8000", ""},
		"by name":      {"web", "http", "10.96.0.7:80", ""},
		"no such port": {"web", "grpc", "", `no port named "grpc"`},
		"no such one":  {"gone", "80", "", "not found"},
		"headless":     {"set", "80", "", "no cluster IP"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := d.clusterAddress(config.ServicePort{Namespace: "ns", Name: c.name, Port: c.port})
			if got != c.want || (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}
