// Command cluster is a Kubernetes cluster on one machine: control plane, nodes, and pods that are local processes.
package main

import (
	"fmt"
	"os"
	"runtime"

	"github.com/spf13/cobra"

	"tandem.dev/e2e/cluster/internal/box"
	"tandem.dev/e2e/cluster/internal/config"
	"tandem.dev/e2e/cluster/internal/control"
	"tandem.dev/e2e/cluster/internal/cri"
	"tandem.dev/e2e/cluster/internal/gate"
	"tandem.dev/e2e/cluster/internal/node"
	"tandem.dev/e2e/cluster/internal/ops"
)

func init() {
	// /proc/self speaks of the first thread: it must never be one that package spawn takes to other namespaces.
	runtime.LockOSThread()
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == cri.BoxRole {
		box.Become()
	}
	if len(os.Args) == 4 && os.Args[1] == ops.Role {
		fail(become(os.Args[2], os.Args[3]))
		return
	}
	fail(commands().Execute())
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

// become makes this process one of the cluster's daemons: a part of the control plane, the gate, or a node.
func become(role, dir string) error {
	state, err := config.ReadState(dir)
	if err != nil {
		return err
	}
	if name, ok := ops.NodeOf(role); ok {
		return node.Run(name, state)
	}
	if role == ops.Gate {
		return gate.Run(state)
	}
	return control.Run(role, state)
}

func commands() *cobra.Command {
	root := &cobra.Command{Use: "cluster", Short: "A Kubernetes cluster on one machine", SilenceUsage: true, SilenceErrors: true}
	var dir string
	root.PersistentFlags().StringVar(&dir, "dir", "build/cluster", "the cluster's folder; each has its own cluster")
	root.AddCommand(up(&dir), down(&dir), status(&dir), nodes(&dir))
	return root
}

func up(dir *string) *cobra.Command {
	var request ops.UpRequest
	c := &cobra.Command{Use: "up", Short: "Start a cluster and wait until its nodes are ready", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error {
		request.Dir = *dir
		return ops.Up(request)
	}}
	c.Flags().StringVar(&request.ConfigPath, "config", "e2e/cluster/local.yaml", "kinds of nodes, nodes, images, published ports")
	c.Flags().StringVar(&request.Root, "root", "", "the repository (default: the git checkout that the configuration is in)")
	c.Flags().IntVar(&request.Port, "port", 16443, "the API server's port on 127.0.0.1")
	return c
}

func down(dir *string) *cobra.Command {
	return &cobra.Command{Use: "down", Short: "End a cluster; its logs stay", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error {
		return ops.Down(*dir)
	}}
}

func status(dir *string) *cobra.Command {
	return &cobra.Command{Use: "status", Short: "Say what runs, and whether nodes are ready", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error {
		return ops.Status(*dir, os.Stdout)
	}}
}

func nodes(dir *string) *cobra.Command {
	parent := &cobra.Command{Use: "node", Short: "Add or lose a node"}
	var kind string
	add := &cobra.Command{Use: "add NAME", Short: "Add a node, or start a killed one again", Args: cobra.ExactArgs(1), RunE: func(_ *cobra.Command, args []string) error {
		return ops.AddNode(*dir, args[0], kind)
	}}
	add.Flags().StringVar(&kind, "kind", "", "one of the configuration's kinds")
	kill := &cobra.Command{Use: "kill NAME", Short: "Kill a node and its pods, as if it lost power", Args: cobra.ExactArgs(1), RunE: func(_ *cobra.Command, args []string) error {
		return ops.KillNode(*dir, args[0])
	}}
	parent.AddCommand(add, kill)
	return parent
}
