"""The `tandem.dev` API: the resource, its conditions, its CRD and the hardware catalogue."""
