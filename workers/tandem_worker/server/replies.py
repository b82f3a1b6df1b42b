"""The shapes of OpenAI's answers: chat or plain completion, whole or as a stream."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from tandem_worker.server.calls import Said
    from tandem_worker.server.choice import Choice
    from tandem_worker.server.job import Jobs

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


def event(payload: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + _encode(payload) + b"\n\n"


def error_event(fields: dict[str, Any]) -> bytes:
    """The last event of a stream that failed."""
    return b"event: error\ndata: " + _encode({"error": fields}) + b"\n\n"


@dataclass(slots=True)
class Reply:
    """One response in the making: its choices and its counts."""

    model: str
    chat: bool
    choices: list[Choice]
    prompt_tokens: int
    include_usage: bool
    created: int = field(default_factory=lambda: int(time.time()))
    _id: str = ""

    def name(self, job_id: str) -> None:
        """The answer's id, from its first job's."""
        self._id = ("chatcmpl-" if self.chat else "cmpl-") + job_id.replace("#", "-")

    @property
    def done(self) -> bool:
        """Has every choice its end?"""
        return all(choice.finish is not None for choice in self.choices)

    def stream_piece(self, choice: Choice, said: Said, *, last: bool) -> bytes:
        """The piece's event; empty where nothing is to be said yet."""
        delta = choice.delta(said, last=last)
        if delta is None:
            return b""
        chunk = {**self._head(streaming=True), "choices": [delta]}
        if self.include_usage:
            chunk["usage"] = None
        return event(chunk)

    def stream_end(self, jobs: Jobs, worker: str) -> bytes:
        """Usage, if asked for, and the end."""
        if not self.include_usage:
            return DONE
        return event({**self._head(streaming=True), "choices": [], "usage": self.usage(jobs, worker)}) + DONE

    def body(self, jobs: Jobs, worker: str) -> bytes:
        """The whole answer."""
        choices = [choice.whole() for choice in self.choices]
        return _encode({**self._head(streaming=False), "choices": choices, "usage": self.usage(jobs, worker)})

    def usage(self, jobs: Jobs, worker: str) -> dict[str, Any]:
        """OpenAI's counts (a prompt counts once, however many choices it has), and Tandem's beside them."""
        completion = sum(choice.tokens for choice in self.choices)
        cached = jobs.first.cached_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self.prompt_tokens + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
            "tandem": {
                "kv_bytes": sum(job.kv_bytes for job in jobs.by_choice.values()),
                "prefill_worker": jobs.first.prefill_worker,
                "decode_worker": worker,
                "cached_tokens": cached,
            },
        }

    def _head(self, *, streaming: bool) -> dict[str, Any]:
        kind = ("chat.completion.chunk" if streaming else "chat.completion") if self.chat else "text_completion"
        return {"id": self._id, "object": kind, "created": self.created, "model": self.model}
