"""The worker's HTTP side: an OpenAI API, health, metrics. Text state lives here, on the worker that decodes."""
