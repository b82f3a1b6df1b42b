"""What locust does as a user: chats and completions, one after the other. `e2e.bench.clients` runs it."""

from __future__ import annotations

import os
from typing import Any

from locust import HttpUser, task

MODEL = os.environ["TANDEM_BENCH_MODEL"]
TOKENS = int(os.environ["TANDEM_BENCH_TOKENS"])


REQUESTS = int(os.environ["TANDEM_BENCH_REQUESTS"])


class Client(HttpUser):
    """Waits for each answer before it asks again; the run ends with the last of so many answers."""

    def on_start(self) -> None:
        """The load is bounded by a count, too, and not by time alone."""
        self.environment.events.request.add_listener(self.end_when_done)

    def end_when_done(self, **_: Any) -> None:
        """After an answer."""
        if self.environment.stats.total.num_requests >= REQUESTS:
            self.environment.runner.quit()

    @task
    def chat(self) -> None:
        """A whole answer."""
        asked = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": TOKENS, "ignore_eos": True}
        with self.client.post("/v1/chat/completions", json=body(asked), catch_response=True, name="chat") as answer:
            if answer.status_code != 200 or answer.json()["usage"]["completion_tokens"] != TOKENS:
                answer.failure(f"{answer.status_code}: {answer.text[:200]}")

    @task
    def completion(self) -> None:
        """A streamed one."""
        asked = {"prompt": "The sea is", "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
        with self.client.post("/v1/completions", json=body(asked), catch_response=True, name="stream") as answer:
            if answer.status_code != 200 or not answer.text.rstrip().endswith("data: [DONE]"):
                answer.failure(f"{answer.status_code}: {answer.text[:200]}")


def body(asked: dict[str, Any]) -> dict[str, Any]:
    """A request for the model."""
    return {"model": MODEL, **asked}
