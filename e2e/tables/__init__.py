"""Tables that are generated from what the operator really does, against an API server in memory."""
