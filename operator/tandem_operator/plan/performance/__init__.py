"""The performance model: what a forward pass, a transfer and a prompt cost, from a model's config and a data sheet."""
