"""One choice of an answer in the making: its text, its log-probabilities, its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tandem_worker.server.calls import CallReader, Said
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
    calls: CallReader | None = None
    tokens: int = 0
    finish: str | None = None
    _begun: bool = False
    _called: bool = False
    _whole: list[Said] = field(default_factory=list)
    _pending: list[dict[str, Any]] = field(default_factory=list)  # log-probabilities not sent yet
    _offset: int = 0  # characters before the next token, for plain completions

    def add(self, token: Token) -> Said:
        """One more token. After the last one, which sets `finish`, nothing may be added."""
        self.tokens += 1
        piece = self.text.push(token)
        said = self._read(piece)
        self.finish = piece.finish
        if self.calls is not None and self._called and piece.finish == "stop":
            self.finish = self.calls.ends_with
        if self.logprob_count is not None and token.finish != "stop":
            self._pending.append(self._logprob(token))
        self._whole.append(said)
        return said

    def _read(self, piece: Piece) -> Said:
        if self.calls is None:
            return Said(piece.text)
        said = self.calls.push(piece.text, last=piece.finish is not None)
        self._called = self._called or bool(said.calls)
        return said

    def delta(self, said: Said, *, last: bool) -> dict[str, Any] | None:
        """The piece as it is streamed. None where nothing is to be said yet: it may still become a stop string.

        Where text is held back because it may be a call, an empty piece says that the work goes on: that can last.
        """
        if self._begun and not said.text and not said.calls and not last and self.calls is None:
            return None
        first, self._begun = not self._begun, True
        logprobs, self._pending = self._logprobs(self._pending), []
        if self.chat:
            delta: dict[str, Any] = {"role": "assistant"} if first else {}
            if said.text or (first and not said.calls):
                delta["content"] = said.text
            if said.calls:
                delta["tool_calls"] = said.calls
            content: dict[str, Any] = {"delta": delta}
        else:
            content = {"text": said.text}
        reason = self.finish if last else None
        return {"index": self.number, **content, "logprobs": logprobs, "finish_reason": reason}

    def whole(self) -> dict[str, Any]:
        """The choice as it stands in a whole answer."""
        text = "".join(said.text for said in self._whole)
        content: dict[str, Any] = {"text": text}
        if self.chat:
            message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
            if self._called:
                message |= {"content": text or None, "tool_calls": whole_calls(self._whole)}
            content = {"message": message}
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


def whole_calls(pieces: list[Said]) -> list[dict[str, Any]]:
    """The calls that streamed in pieces, each in one."""
    calls: dict[int, dict[str, Any]] = {}
    for piece in (one for said in pieces for one in said.calls):
        number = piece["index"]
        if number not in calls:
            calls[number] = {name: value for name, value in piece.items() if name != "index"}
            continue
        function = calls[number]["function"]
        arguments = function["arguments"] + piece["function"]["arguments"]
        calls[number]["function"] = {**function, "arguments": arguments}
    return list(calls.values())
