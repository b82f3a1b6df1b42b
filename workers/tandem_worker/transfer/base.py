"""What every transfer backend offers, and how each proves that a writer has stopped."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from tandem_worker.transfer.wire import AnyMessage, Chunk, Generation, Hello, Message


class Fence(StrEnum):
    """What, besides the writer's own `quiet`, ends the quarantine of a ticket's pages."""

    MESSAGE = "message"  # nothing: only the writer's word
    CONNECTION = "connection"  # the connection's end: what it carried cannot land any more
    KEY = "key"  # the memory key's end (RDMA): a connection's end does not stop a write in flight


class Channel(Protocol):
    """One authenticated connection to a peer, as the two sides of a transfer see it."""

    @property
    def peer(self) -> Hello:
        """Who is at the other end."""

    @property
    def alive(self) -> bool:
        """May messages still be sent? False for good once the connection ends."""

    @property
    def backlog(self) -> int:
        """Bytes that wait to be sent."""

    def send(self, message: Message, body: bytes | memoryview = b"") -> None:
        """A small message, ahead of all waiting pages."""

    def push(self, generation: Generation, message: Message, body: bytes | memoryview = b"") -> None:
        """Pages, and what must follow them: sent in order, after every small message."""

    def drop(self, generation: Generation) -> None:
        """Forget this generation's waiting pages; what has been handed to the kernel still arrives."""

    def abort(self, reason: str) -> None:
        """End the connection at once and for good; its owner hears of it, perhaps later."""

    def revoke(self) -> bool:
        """End the memory key that the peer writes with. True: there was one, and no write can land any more."""


class Owner(Protocol):
    """Who hears what comes in on a connection."""

    def on_message(self, channel: Channel, message: AnyMessage, body: memoryview) -> None:
        """One frame; `body` is valid during the call only. Raises WireError to end the connection."""

    def on_closed(self, channel: Channel, reason: str) -> None:
        """The connection is gone; nothing of it can arrive any more."""


class Meter:
    """What a transfer counts; this one counts nothing, the worker's metrics do. Seconds and bytes."""

    def sent(self, byte_count: int) -> None:
        """Pages were handed to the connection."""

    def received(self, byte_count: int) -> None:
        """Pages were copied into a reservation."""

    def queued(self, seconds: float) -> None:
        """From a prefill's arrival to the head of the queue."""

    def prefilled(self, seconds: float) -> None:
        """From a prefill's admission to its first token."""

    def transferred(self, seconds: float) -> None:
        """From the first token to the commit: what of a transfer the computing did not hide."""

    def cut_off(self) -> None:
        """A writer that did not say that it had stopped lost its connection for good."""


class Receiver(Protocol):
    """The part of the engine that takes pages in."""

    def write_pages(self, id: str, first_page: int, pages: Tensor) -> None:  # noqa: A002 - the engine's word
        """Copy pages into a reservation."""


class Transfer(Protocol):
    """How pages get from one worker's memory into another's. tcp.py holds one; others fit beside it."""

    name: str
    fence: Fence
    page_bytes: int

    def push(self, channel: Channel, generation: Generation, first_page: int, pages: Tensor) -> int:
        """Send finished pages; twice is harmless. Returns bytes.

        pages: [n, layers, 2, page_tokens, kv_heads, head_dim], contiguous, the callee's own from now on.
        """

    def receive(self, engine: Receiver, request: str, chunk: Chunk, body: memoryview) -> None:
        """Take one chunk's body into the request's reserved pages."""
