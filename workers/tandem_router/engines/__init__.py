"""How the router speaks with each engine's workers: one protocol a file."""
