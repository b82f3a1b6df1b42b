"""What every transfer backend offers, and how each proves that a writer has stopped."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio

    from tandem_worker.engine.lending import Loan
    from tandem_worker.engine.memory import MemoryFile
    from tandem_worker.transfer.ends import Flying
    from tandem_worker.transfer.wire import AnyMessage, Chunk, Generation, Hello, Lend, Message, Span


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
    def bandwidth(self) -> float | None:
        """Bytes of pages per second that the peer takes; None: not known yet."""

    @property
    def shares(self) -> int:
        """Into how many parts the ranks of the peer split a page."""

    @property
    def fence(self) -> Fence:
        """What, besides the peer's own word, proves that no write of it can land any more."""

    @property
    def alive(self) -> bool:
        """May messages still be sent? False for good once the connection ends."""

    @property
    def backlog(self) -> int:
        """Bytes of pages that the peer has not taken."""

    @property
    def frame_bytes(self) -> int:
        """The longest frame that may be pushed now; one of a single page may be longer."""

    def send(self, message: Message, body: bytes | memoryview = b"") -> None:
        """A small message, ahead of all waiting pages."""

    def push(self, generation: Generation, chunk: Chunk, body: Loan) -> None:
        """A frame of pages: behind every small message, in turn with the frames of other transfers.

        The loan ends once the peer has taken it, it is dropped, or the connection is gone.
        """

    def finish(self, generation: Generation, message: Message) -> None:
        """A transfer's last word, behind its pages; `Owner.on_sent` follows once the peer has taken them all."""

    def drop(self, generation: Generation) -> None:
        """Forget this generation's waiting pages; what has been handed over or named still arrives."""

    def abort(self, reason: str) -> None:
        """End the connection at once and for good; its owner hears of it, perhaps later."""

    def revoke(self) -> bool:
        """End the memory key that the peer writes with. True: there was one, and no write can land any more."""


class Owner(Protocol):
    """Who hears what comes in on a connection."""

    def on_message(self, channel: Channel, message: AnyMessage, body: memoryview) -> None:
        """Any frame but one of pages; `body` is valid during the call only. Raises WireError to end the connection."""

    def place(self, channel: Channel, chunk: Chunk) -> Sequence[memoryview] | None:
        """Where these pages belong: written until `landed` or the connection's end at most. None: nowhere, drop them.

        Raises WireError to end the connection.
        """

    def landed(self, channel: Channel, chunk: Chunk) -> None:
        """The pages lie where they belong."""

    def on_sent(self, channel: Channel, generation: Generation) -> None:
        """A transfer's last word has left, and the peer has taken all of its pages."""

    def on_closed(self, channel: Channel, reason: str) -> None:
        """The connection is gone; nothing of it can arrive any more."""


class Meter:
    """What a transfer counts; this one counts nothing, the worker's metrics do. Seconds and bytes."""

    def sent(self, byte_count: int) -> None:
        """Pages were handed to the connection."""

    def copied(self, byte_count: int) -> None:
        """Pages went over the connection, though others travel beside it: too many were lent, so they are a copy."""

    def received(self, byte_count: int) -> None:
        """Pages have come into a reservation."""

    def queued(self, seconds: float) -> None:
        """From a prefill's arrival to the head of the queue."""

    def prefilled(self, seconds: float) -> None:
        """From a prefill's admission to its first token."""

    def transferred(self, seconds: float, ttft_s: float) -> None:
        """From the first token to the commit: what of a transfer the computing did not hide; and until the first."""

    def saved(self, byte_count: int) -> None:
        """Pages of a granted ticket that the decode worker has already: they do not travel."""

    def bandwidth(self, bytes_per_second: float) -> None:
        """What a link to a decode worker carries, as measured."""

    def expected(self, byte_count: int, bytes_per_second: float | None) -> None:
        """A transfer begins: what its shapes say will travel, and how fast; None: not known."""

    def busy(self, seconds: float) -> None:
        """Pages were under way to a decode worker for so much longer."""

    def linked(self, backend: str, change: int) -> None:
        """One connection more (1) or less (-1) whose pages travel like this: the way in use, not the one asked for."""

    def cut_off(self) -> None:
        """A writer that did not say that it had stopped lost its connection for good."""


class Transfer(Protocol):
    """How pages become frames; how a frame's bytes travel is the backend's."""

    page_bytes: int
    frame_bytes: int  # no frame is longer, and none is taken that is

    def push(self, channel: Channel, generation: Generation, first_page: int, pages: Loan) -> int:
        """Send finished pages, and end their loan afterwards; twice is harmless. Returns bytes."""


class BackendError(Exception):
    """The backend cannot be used here; the text says what to choose or to install."""


class LaneError(Exception):
    """Pages cannot travel this way between these two workers; the text says why. They travel over tcp instead."""


class Lane(Protocol):
    """One end of how the pages of one connection travel beside it: the writer's (spans, under_way) or the reader's.

    A frame is fetched after the message that names it, in the writer's own pages: the writer lends them until `taken`.
    """

    name: str
    fence: Fence
    flying: Flying  # fetches under way
    scratch: memoryview  # the reader's: what it reads and does not want goes here

    def sample(self, most: int) -> tuple[Span, ...]:
        """Something of what was lent, whatever it holds, for a peer that reads it to know how long that takes."""

    def spans(self, pieces: Sequence[memoryview]) -> tuple[Span, ...]:
        """Where a frame lies in what was lent; none where it does not lie there: its bytes go over the connection."""

    def under_way(self, frames: bool) -> None:
        """Are frames named and not taken? Told whenever that may have changed."""

    def fetch(self, spans: Sequence[Span], pieces: Sequence[memoryview]) -> asyncio.Future[None] | None:
        """Bring a frame to where it belongs; None: it is there. The future may fail with LaneError.

        Raises WireError for a place outside of what was lent, LaneError where the library refuses.
        """

    def revoke(self) -> bool:
        """End the key that pages are written with. True: there was one, and no write can land any more."""

    def close(self) -> None:
        """The connection is gone. Twice is harmless."""


class Backend(Protocol):
    """One way for pages to travel, for all connections of a worker. One file each."""

    name: str
    fence: Fence

    def open(self, memory: memoryview, file: MemoryFile | None) -> None:
        """The worker's KV pages, and the file that they lie in; before the first connection. Raises BackendError."""

    def lend(self) -> tuple[Lane, Lend] | None:
        """Prefill worker, new connection: its end of a lane, and what the peer needs for the other; None: no lane."""

    async def borrow(self, lend: Lend) -> Lane:
        """Decode worker: the other end. Raises LaneError."""

    def close(self) -> None:
        """The worker stops."""
