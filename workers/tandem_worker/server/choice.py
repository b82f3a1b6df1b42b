"""One choice of an answer in the making: its text, its log-probabilities, its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tandem_worker.server.text import Piece, TextState

if TYPE_CHECKING:
    from tandem_worker.engine import Token, Tokenizer


@dataclass(slots=True)
class Choice:
    """`number`: OpenAI's index. `logprob_count`: alternatives a token is shown with; None: no logprobs at all."""

    number: int
    chat: bool
    tokenizer: Tokenizer
    text: TextState
    logprob_count: int | None
    tokens: int = 0
    finish: str | None = None
    _begun: bool = False
    _whole: list[str] = field(default_factory=list)
    _pending: list[dict[str, Any]] = field(default_factory=list)  # log-probabilities not sent yet
    _offset: int = 0  # characters before the next token, for plain completions

    def add(self, token: Token) -> Piece:
        """One more token. After a piece with `finish` nothing may be added."""
        self.tokens += 1
        piece = self.text.push(token)
        self.finish = piece.finish
        if self.logprob_count is not None and token.finish != "stop":
            self._pending.append(self._logprob(token))
        self._whole.append(piece.text)
        return piece

    def delta(self, piece: Piece) -> dict[str, Any] | None:
        """The piece as it is streamed. None where nothing is to be said yet: it may still become a stop string."""
        if self._begun and not piece.text and piece.finish is None:
            return None
        first, self._begun = not self._begun, True
        logprobs, self._pending = self._logprobs(self._pending), []
        if self.chat:
            delta = {"role": "assistant", "content": piece.text} if first else {"content": piece.text}
            content: dict[str, Any] = {"delta": delta if first or piece.text else {}}
        else:
            content = {"text": piece.text}
        return {"index": self.number, **content, "logprobs": logprobs, "finish_reason": piece.finish}

    def whole(self) -> dict[str, Any]:
        """The choice as it stands in a whole answer."""
        text = "".join(self._whole)
        content: dict[str, Any] = {"text": text}
        if self.chat:
            content = {"message": {"role": "assistant", "content": text, "refusal": None}}
        logprobs = self._logprobs(self._pending)
        return {"index": self.number, **content, "logprobs": logprobs, "finish_reason": self.finish}

    def _logprob(self, token: Token) -> dict[str, Any]:
        shown = token.top[: self.logprob_count or 0]
        return {**self._entry(token.id, token.logprob), "top_logprobs": [self._entry(*one) for one in shown]}

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        text = self.tokenizer.token_text(token_id)
        return {"token": text, "logprob": max(logprob, -9999.0), "bytes": list(self.tokenizer.token_bytes(token_id))}

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
