package control

import (
	"fmt"

	"tandem.dev/e2e/cluster/internal/config"
)

// NodeGrace is how long a silent node stays Ready: a tenth of what production waits, so that tests see a lost node soon.
const NodeGrace = "12s"

func apiserverFlags(s *config.State) []string {
	return []string{
		"--etcd-servers=" + etcdURL,
		"--bind-address=0.0.0.0",
		fmt.Sprintf("--secure-port=%d", config.APIPort),
		"--advertise-address=" + config.APIAddress,
		"--service-cluster-ip-range=" + config.ServiceCIDR,
		"--tls-cert-file=" + s.Path("pki", "apiserver.crt"),
		"--tls-private-key-file=" + s.Path("pki", "apiserver.key"),
		"--client-ca-file=" + s.Path("pki", "ca.crt"),
		// Nobody holds a certificate of this name: no one may speak for others. Set only because the parts ask for it.
		"--requestheader-client-ca-file=" + s.Path("pki", "ca.crt"),
		"--requestheader-allowed-names=front-proxy",
		"--token-auth-file=" + s.Path("pki", "tokens.csv"),
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + s.Path("pki", "service-accounts.key"),
		"--service-account-signing-key-file=" + s.Path("pki", "service-accounts.key"),
		"--kubelet-certificate-authority=" + s.Path("pki", "ca.crt"),
		"--kubelet-client-certificate=" + s.Path("pki", "apiserver.crt"),
		"--kubelet-client-key=" + s.Path("pki", "apiserver.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--profiling=false",
	}
}

func managerFlags(s *config.State) []string {
	return append(client(s, "manager"),
		"--leader-elect=false",
		"--use-service-account-credentials=true",
		"--root-ca-file="+s.Path("pki", "ca.crt"),
		"--service-account-private-key-file="+s.Path("pki", "service-accounts.key"),
		"--node-monitor-period=1s",
		"--node-monitor-grace-period="+NodeGrace,
		"--profiling=false",
	)
}

func schedulerFlags(s *config.State) []string {
	return append(client(s, "scheduler"), "--leader-elect=false", "--profiling=false")
}

// client are the flags by which the manager and the scheduler reach the API server and let it vouch for their own callers.
func client(s *config.State, name string) []string {
	kubeconfig := s.Path("pki", name+".kubeconfig")
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=127.0.0.1",
	}
}

func proxyFlags(s *config.State) []string {
	return []string{
		"--kubeconfig=" + s.Path("pki", "proxy.kubeconfig"),
		"--proxy-mode=nftables",
		"--cluster-cidr=" + config.PodCIDR,
		// One proxy stands for those of all nodes, which share the namespace; it must speak for one that exists.
		"--hostname-override=" + s.Nodes[0].Name,
		"--metrics-bind-address=127.0.0.1:10249",
		"--healthz-bind-address=127.0.0.1:10256",
		// The connection table's size is the machine's, not the namespace's: leave it alone.
		"--conntrack-max-per-core=0",
		"--conntrack-tcp-timeout-established=0",
		"--conntrack-tcp-timeout-close-wait=0",
	}
}
