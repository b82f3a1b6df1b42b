package ops

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"

	"k8s.io/client-go/tools/clientcmd/api"

	"tandem.dev/e2e/cluster/internal/config"
	"tandem.dev/e2e/cluster/internal/control"
	"tandem.dev/e2e/cluster/internal/node"
	"tandem.dev/e2e/cluster/internal/pki"
)

// credentials makes the authority, the control plane's certificates and the administrator's kubeconfig.
func credentials(state *config.State) error {
	authority, err := pki.Create(state.Path("pki"))
	if err != nil {
		return err
	}
	server := pki.Identity{User: "kube-apiserver", Groups: []string{"system:masters"}, Hosts: []string{
		"127.0.0.1", "localhost", config.APIAddress, config.APIService,
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
	}}
	if err := authority.Issue("apiserver", server); err != nil {
		return err
	}
	if err := authority.Issue("service-accounts", pki.Identity{User: "service-accounts"}); err != nil {
		return err
	}
	for name, user := range map[string]string{
		"manager": "system:kube-controller-manager", "scheduler": "system:kube-scheduler", "proxy": "system:kube-proxy",
	} {
		if err := authority.ClientConfig(state.Path("pki", name+".kubeconfig"), control.Server, name, pki.Identity{User: user}); err != nil {
			return err
		}
	}
	return administrator(state, authority)
}

// administrator gets a token, not a certificate: every client can use one.
func administrator(state *config.State, authority *pki.Authority) error {
	secret := make([]byte, 16)
	_, _ = rand.Read(secret) // never fails, says its documentation
	token := hex.EncodeToString(secret)
	line := token + ",admin,admin,system:masters\n"
	if err := os.WriteFile(state.Path("pki", "tokens.csv"), []byte(line), 0o600); err != nil {
		return err
	}
	server := fmt.Sprintf("https://127.0.0.1:%d", state.Port)
	return authority.Kubeconfig(state.Path("kubeconfig"), server, &api.AuthInfo{Token: token})
}

// nodeCredentials lets a kubelet call the API server as its node, and serve at its address.
func nodeCredentials(state *config.State, n config.Node) error {
	authority, err := pki.Open(state.Path("pki"))
	if err != nil {
		return err
	}
	who := pki.Identity{User: "system:node:" + n.Name, Groups: []string{"system:nodes"}, Hosts: []string{n.Address(), n.Name}}
	return authority.ClientConfig(node.Kubeconfig(state, n.Name), control.Server, nodePrefix+n.Name, who)
}
