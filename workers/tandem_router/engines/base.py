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


class Order(Enum):
    """When the prefill worker has to be asked by the router itself."""

    NEVER = auto()  # the decode worker does it
    BEFORE = auto()  # its answer goes into the decode worker's request
    BESIDE = auto()  # both get the request at once


class Stream(Protocol):
    """One streamed answer on its way through."""

    fresh: bool  # the last `feed` brought tokens
    ended: bool  # the stream said that it is complete
    failed: bool  # the worker put an error into the stream
    usage: Usage | None

    def feed(self, data: bytes) -> bytes:
        """Bytes from the worker in; whole events out, as they were written. Raises BrokenStreamError."""


class Errand(Protocol):
    """One try of one request with one pair: what each of its workers is sent."""

    @property
    def order(self) -> Order:
        """When the prefill worker is asked."""

    @property
    def prefill_body(self) -> bytes:
        """For the prefill worker; empty with Order.NEVER."""

    def decode_body(self, prefilled: bytes) -> bytes:
        """For the decode worker; `prefilled`: the prefill worker's answer, with Order.BEFORE. Raises BadAnswerError."""


class Engine(Protocol):
    """The protocol of one kind of worker."""

    works_alone: bool  # a decode worker can do the whole job

    def headers(self, pair: Pair, request_id: str) -> dict[str, str]:
        """What the workers have to be told beside the body."""

    def errand(self, pair: Pair, body: bytes) -> Errand:
        """A fresh try with this pair. Raises RefusedError for what the protocol cannot carry."""

    def verdict(self, status: int, headers: Mapping[str, str]) -> Verdict:
        """What to do with an answer of this status."""

    def stream(self, *, keep_usage: bool) -> Stream:
        """A fresh stream; without `keep_usage` the usage chunk is taken out."""

    def usage(self, body: bytes) -> Usage | None:
        """The usage of an answer that was not streamed; None when it has none."""


@dataclass(frozen=True, slots=True)
class DecodeOnly:
    """An errand whose prefill worker is the decode worker's affair, or that has none."""

    body: bytes
    order: Order = Order.NEVER
    prefill_body: bytes = b""

    def decode_body(self, prefilled: bytes) -> bytes:  # noqa: ARG002 nobody was asked
        """The request as it is."""
        return self.body


class BrokenStreamError(Exception):
    """The worker's stream is not what its protocol says."""


class BadAnswerError(Exception):
    """A prefill worker's answer is not what its protocol says."""
