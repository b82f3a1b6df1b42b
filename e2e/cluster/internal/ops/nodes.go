package ops

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"tandem.dev/e2e/cluster/internal/config"
)

// open finds the running cluster in dir and locks it.
func open(dir string) (state *config.State, unlock func(), err error) {
	if dir, err = resolve(dir); err != nil {
		return nil, nil, err
	}
	if unlock, err = lock(dir); err != nil {
		return nil, nil, err
	}
	state, err = config.ReadState(dir)
	if errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("no cluster in %s: start one with `cluster up`", dir)
	}
	if err != nil {
		unlock()
		return nil, nil, err
	}
	return state, unlock, nil
}

// AddNode adds a node and waits until it is ready. A killed node starts again under its old name, without its pods.
func AddNode(dir, name, kind string) error {
	began := time.Now()
	state, unlock, err := open(dir)
	if err != nil {
		return err
	}
	defer unlock()
	node, err := nodeToStart(state, name, kind)
	if err != nil {
		return err
	}
	if err := startNode(state, node); err != nil {
		return err
	}
	c, err := client(state)
	if err != nil {
		return err
	}
	if err := until("node "+name+" to be ready", func() error { return nodeReady(context.Background(), c, name) }); err != nil {
		return err
	}
	fmt.Printf("node %s ready in %.1f s\n", name, time.Since(began).Seconds())
	return nil
}

func nodeToStart(state *config.State, name, kind string) (config.Node, error) {
	if node, err := state.Find(name); err == nil {
		if len(state.Tree.Node(name).Procs()) > 0 {
			return node, fmt.Errorf("node %s runs already", name)
		}
		if kind != "" && kind != node.Kind {
			return node, fmt.Errorf("node %s is of kind %s: a node cannot change its kind", name, node.Kind)
		}
		return node, nil
	}
	node, err := state.Add(name, kind)
	if err != nil {
		return node, err
	}
	return node, state.Save()
}

// KillNode kills the kubelet and all its pods at once. The Node object stays: the cluster must find out by itself.
func KillNode(dir, name string) error {
	state, unlock, err := open(dir)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := state.Find(name); err != nil {
		return err
	}
	group := state.Tree.Node(name)
	if err := group.Kill(15 * time.Second); err != nil {
		return fmt.Errorf("kill node %s: %w", name, err)
	}
	if err := group.Remove(); err != nil {
		return err
	}
	if err := os.RemoveAll(state.NodeDir(name)); err != nil {
		return err
	}
	fmt.Printf("node %s killed\n", name)
	return nil
}
