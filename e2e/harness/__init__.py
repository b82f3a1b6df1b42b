"""What the demo and the cluster tests drive the world with: the one-machine cluster (or KUBECONFIG), kubectl, waiting."""
