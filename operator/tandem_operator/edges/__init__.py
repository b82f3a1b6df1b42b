"""The only code that touches the world: the API server, Prometheus, events."""
