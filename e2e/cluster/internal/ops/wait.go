package ops

import (
	"context"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"tandem.dev/e2e/cluster/internal/config"
	"tandem.dev/e2e/cluster/internal/spawn"
)

// patience is how long `up` waits for each step; a busy machine with two cores needs a tenth of it.
const patience = 60 * time.Second

func client(state *config.State) (*kubernetes.Clientset, error) {
	rest, err := clientcmd.BuildConfigFromFlags("", state.Path("kubeconfig"))
	if err != nil {
		return nil, err
	}
	rest.Timeout = 5 * time.Second
	return kubernetes.NewForConfig(rest)
}

func apiReady(state *config.State) error {
	c, err := client(state)
	if err != nil {
		return err
	}
	_, err = c.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(context.Background())
	return err
}

func waitAPI(state *config.State) error {
	return until("the API server to be ready", func() error { return apiReady(state) })
}

// waitNodes waits until pods can run: every node ready and open, service accounts there, the API server's Service carried.
func waitNodes(state *config.State) error {
	c, err := client(state)
	if err != nil {
		return err
	}
	ctx := context.Background()
	for _, node := range state.Nodes {
		if err := until("node "+node.Name+" to be ready", func() error { return nodeReady(ctx, c, node.Name) }); err != nil {
			return err
		}
	}
	err = until("the default service account", func() error {
		_, err := c.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	if err != nil {
		return err
	}
	return until("kube-proxy to carry service kubernetes", func() error { return serviceReachable(state) })
}

func nodeReady(ctx context.Context, c kubernetes.Interface, name string) error {
	node, err := c.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, taint := range node.Spec.Taints {
		if taint.Key == v1.TaintNodeNotReady || taint.Key == v1.TaintNodeUnreachable {
			return fmt.Errorf("node %s still has taint %s", name, taint.Key)
		}
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == v1.NodeReady {
			if condition.Status == v1.ConditionTrue {
				return nil
			}
			return fmt.Errorf("node %s is not ready: %s", name, condition.Message)
		}
	}
	return fmt.Errorf("node %s has not reported yet", name)
}

func serviceReachable(state *config.State) error {
	return spawn.On(func() error {
		connection, err := net.DialTimeout("tcp4", config.APIService+":443", time.Second)
		if err == nil {
			connection.Close()
		}
		return err
	}, spawn.EnterPath(state.NetNS(), unix.CLONE_NEWNET))
}

// until tries again and again; the last refusal says what was missing.
func until(what string, try func() error) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		err := try()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("waited %s for %s: %w", patience, what, err)
		}
	}
}
