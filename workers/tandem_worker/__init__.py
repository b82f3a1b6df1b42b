"""The data plane's worker: engine, KV transfer, OpenAI server."""
