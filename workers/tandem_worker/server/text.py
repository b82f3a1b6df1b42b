"""Tokens become text: no half characters, no stop strings, one piece a token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tandem_worker.engine import Token


class Decoder(Protocol):
    """The tokenizer's incremental decoder."""

    def push(self, id: int) -> str:  # noqa: A002 - the tokenizer's word
        """Text that is certain after one more token."""

    def flush(self) -> str:
        """The rest."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one token adds; `finish` is None, "stop" or "length"."""

    text: str
    finish: str | None


class TextState:
    """One choice's text. After a piece with `finish` nothing may be pushed."""

    def __init__(self, decoder: Decoder, stops: Sequence[str] = (), min_tokens: int = 0) -> None:
        """In the text of the first `min_tokens` tokens no stop string is looked for."""
        self._decoder = decoder
        self._stops = tuple(stops)
        self._to_come = min_tokens
        self._held = ""  # could be the beginning of a stop string

    def push(self, token: Token) -> Piece:
        """The text that this token makes certain."""
        # A stop token is the end itself, not a part of the text.
        text = self._held + ("" if token.finish == "stop" else self._decoder.push(token.id))
        if token.finish is not None:
            text += self._decoder.flush()
        if self._to_come > 0:
            self._to_come -= 1
            return Piece(text, token.finish)
        if (end := self._first_stop(text)) is not None:
            return Piece(text[:end], "stop")
        if token.finish is not None:
            return Piece(text, token.finish)
        keep = held_back(text, self._stops)
        self._held = text[len(text) - keep :]
        return Piece(text[: len(text) - keep], None)

    def _first_stop(self, text: str) -> int | None:
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        return min(found, default=None)


def held_back(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of `text` that is the beginning of a stop string."""
    longest = max((len(stop) - 1 for stop in stops), default=0)
    for size in range(min(longest, len(text)), 0, -1):
        if any(stop.startswith(text[-size:]) for stop in stops):
            return size
    return 0
