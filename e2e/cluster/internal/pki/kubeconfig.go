package pki

import (
	"os"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// Kubeconfig writes a kubeconfig to path that reaches server as auth and trusts the authority; everything is inside the one file.
func (a *Authority) Kubeconfig(path, server string, auth *api.AuthInfo) error {
	ca, err := os.ReadFile(a.Cert("ca"))
	if err != nil {
		return err
	}
	config := api.NewConfig()
	config.Clusters["tandem"] = &api.Cluster{Server: server, CertificateAuthorityData: ca}
	config.AuthInfos["user"] = auth
	config.Contexts["tandem"] = &api.Context{Cluster: "tandem", AuthInfo: "user"}
	config.CurrentContext = "tandem"
	return clientcmd.WriteToFile(*config, path)
}

// ClientConfig issues a certificate for an identity and writes a kubeconfig that uses it.
func (a *Authority) ClientConfig(path, server, name string, who Identity) error {
	if err := a.Issue(name, who); err != nil {
		return err
	}
	cert, err := os.ReadFile(a.Cert(name))
	if err != nil {
		return err
	}
	key, err := os.ReadFile(a.Key(name))
	if err != nil {
		return err
	}
	return a.Kubeconfig(path, server, &api.AuthInfo{ClientCertificateData: cert, ClientKeyData: key})
}
