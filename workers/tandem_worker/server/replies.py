"""The shapes of OpenAI's answers: chat or plain completion, whole or as a stream."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from tandem_worker.server.text import Piece, TextState

if TYPE_CHECKING:
    from tandem_worker.engine import Token, Tokenizer
    from tandem_worker.server.job import Job

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
    """One response in the making: pieces of text, log-probabilities, counts."""

    id: str
    model: str
    chat: bool
    tokenizer: Tokenizer
    text: TextState
    prompt_tokens: int
    logprob_count: int | None
    include_usage: bool
    created: int = field(default_factory=lambda: int(time.time()))
    completion_tokens: int = 0
    finish: str | None = None
    _begun: bool = False
    _whole: list[str] = field(default_factory=list)
    _pending: list[dict[str, Any]] = field(default_factory=list)  # log-probabilities not sent yet
    _offset: int = 0  # characters before the next token, for plain completions

    def add(self, token: Token) -> Piece:
        """One more token. After a piece with `finish` nothing may be added."""
        self.completion_tokens += 1
        piece = self.text.push(token)
        self.finish = piece.finish
        if self.logprob_count is not None and token.finish != "stop":
            self._pending.append(self._logprob(token))
        self._whole.append(piece.text)
        return piece

    def stream_piece(self, piece: Piece) -> bytes:
        """The piece's event. Empty where nothing is to be said yet: the text may still become a stop string."""
        if self._begun and not piece.text and piece.finish is None:
            return b""
        first, self._begun = not self._begun, True
        logprobs, self._pending = self._logprobs(self._pending), []
        if self.chat:
            delta = {"role": "assistant", "content": piece.text} if first else {"content": piece.text}
            content: dict[str, Any] = {"delta": delta if first or piece.text else {}}
        else:
            content = {"text": piece.text}
        choice = {"index": 0, **content, "logprobs": logprobs, "finish_reason": piece.finish}
        chunk = {**self._head(streaming=True), "choices": [choice]}
        if self.include_usage:
            chunk["usage"] = None
        return event(chunk)

    def stream_end(self, job: Job, worker: str) -> bytes:
        """Usage, if asked for, and the end."""
        if not self.include_usage:
            return DONE
        return event({**self._head(streaming=True), "choices": [], "usage": self.usage(job, worker)}) + DONE

    def body(self, job: Job, worker: str) -> bytes:
        """The whole answer."""
        text = "".join(self._whole)
        content: dict[str, Any] = {"message": {"role": "assistant", "content": text, "refusal": None}}
        if not self.chat:
            content = {"text": text}
        choice = {"index": 0, **content, "logprobs": self._logprobs(self._pending), "finish_reason": self.finish}
        return _encode({**self._head(streaming=False), "choices": [choice], "usage": self.usage(job, worker)})

    def usage(self, job: Job, worker: str) -> dict[str, Any]:
        """OpenAI's counts, and Tandem's beside them."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": job.cached_tokens},
            "tandem": {
                "kv_bytes": job.kv_bytes,
                "prefill_worker": job.prefill_worker,
                "decode_worker": worker,
                "cached_tokens": job.cached_tokens,
            },
        }

    def _head(self, *, streaming: bool) -> dict[str, Any]:
        kind = ("chat.completion.chunk" if streaming else "chat.completion") if self.chat else "text_completion"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _logprob(self, token: Token) -> dict[str, Any]:
        shown = token.top[: self.logprob_count or 0]
        return {**self._entry(token.id, token.logprob), "top_logprobs": [self._entry(*one) for one in shown]}

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        text = self.tokenizer.token_text(token_id)
        return {"token": text, "logprob": max(logprob, -9999.0), "bytes": list(text.encode())}

    def _logprobs(self, entries: list[dict[str, Any]]) -> dict[str, Any] | None:
        if self.logprob_count is None:
            return None
        if self.chat:
            return {"content": entries, "refusal": None}
        offsets = []
        for entry in entries:
            offsets.append(self._offset)
            self._offset += len(entry["token"])
        return {
            "tokens": [entry["token"] for entry in entries],
            "token_logprobs": [entry["logprob"] for entry in entries],
            "top_logprobs": [{one["token"]: one["logprob"] for one in entry["top_logprobs"]} for entry in entries],
            "text_offset": offsets,
        }
