// Package control runs the control plane's parts, each as one process with the flags that this cluster needs.
package control

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"

	"tandem.dev/e2e/cluster/internal/config"
)

// Server is the API server as seen from inside the cluster's network namespace.
var Server = fmt.Sprintf("https://%s:%d", config.APIAddress, config.APIPort)

// Part is a process of the control plane.
type Part struct {
	Name string
	run  func(*config.State) error
}

// Parts are in the order in which they start.
var Parts = []Part{
	{"etcd", runEtcd},
	{"apiserver", run("apiserver", apiserver.NewAPIServerCommand, apiserverFlags)},
	{"manager", run("manager", manager.NewControllerManagerCommand, managerFlags)},
	{"scheduler", run("scheduler", func() *cobra.Command { return scheduler.NewSchedulerCommand() }, schedulerFlags)},
}

// Proxy is kube-proxy, which the gate starts and keeps.
var Proxy = Part{"proxy", run("proxy", proxy.NewProxyCommand, proxyFlags)}

// Run turns this process into the part of that name; it returns only on an error.
func Run(name string, state *config.State) error {
	for _, part := range append(Parts, Proxy) {
		if part.Name == name {
			return part.run(state)
		}
	}
	return fmt.Errorf("there is no part %q of the control plane", name)
}

func run(part string, command func() *cobra.Command, flags func(*config.State) []string) func(*config.State) error {
	return func(state *config.State) error {
		c := command()
		args := append(flags(state), state.Flags[part]...)
		c.SetArgs(args)
		// Version handling and logging of Kubernetes' commands read the process's own arguments.
		os.Args = append([]string{c.Use}, args...)
		if code := cli.Run(c); code != 0 {
			return fmt.Errorf("%s ended with code %d: its log says why", c.Use, code)
		}
		return nil
	}
}
