"""The data plane's router: discovery, placement, proxy."""
