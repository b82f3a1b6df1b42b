"""What every engine's protocol offers the router."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from tandem_router.placement import Pair


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a finished request, as its worker counted them."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0  # of the prompt: the decode worker had them


class Verdict(Enum):
    """What a worker's answer, before its first byte went out, means for the request."""

    PASS_ON = auto()  # the answer, good or bad, is the client's
    ANOTHER_PAIR = auto()  # this pair cannot do it
    FULL = auto()  # this worker's queue is full


class Stream(Protocol):
    """One streamed answer on its way through."""

    fresh: bool  # the last `feed` brought tokens
    ended: bool  # the stream said that it is complete
    failed: bool  # the worker put an error into the stream
    usage: Usage | None

    def feed(self, data: bytes) -> bytes:
        """Bytes from the worker in; whole events out, as they were written. Raises BrokenStreamError."""


class Engine(Protocol):
    """The protocol of one kind of worker."""

    def headers(self, pair: Pair, request_id: str) -> dict[str, str]:
        """What the decode worker has to be told beside the body."""

    def verdict(self, status: int, headers: Mapping[str, str]) -> Verdict:
        """What to do with an answer of this status."""

    def stream(self, *, keep_usage: bool) -> Stream:
        """A fresh stream; without `keep_usage` the usage chunk is taken out."""

    def usage(self, body: bytes) -> Usage | None:
        """The usage of an answer that was not streamed; None when it has none."""


class BrokenStreamError(Exception):
    """The worker's stream is not what its protocol says."""
