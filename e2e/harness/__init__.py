"""What the demo and the cluster tests drive the world with: a cluster, kubectl, waiting."""
