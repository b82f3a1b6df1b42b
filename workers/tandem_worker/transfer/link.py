"""One connection between two workers: handshake, frames, signs of life, and small messages ahead of pages."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import msgspec

from tandem_worker.transfer.base import Fence, LaneError
from tandem_worker.transfer.handshake import Handshake, Identity, RefusedError, Side
from tandem_worker.transfer.outbox import Item, Outbox
from tandem_worker.transfer.rate import Rate
from tandem_worker.transfer.wire import (
    BESIDE,
    MAX_HEADER,
    AnyMessage,
    Borrowed,
    Chunk,
    FrameReader,
    Generation,
    Hello,
    Lend,
    Message,
    Ping,
    Prefill,
    Taken,
    WireError,
    encode,
    frame_head,
)

if TYPE_CHECKING:
    from tandem_worker.transfer.base import Backend, Lane, Meter, Owner

LOG = logging.getLogger(__name__)

PING_EVERY_S: Final = 1.0
SILENT_PINGS: Final = 5  # so many pings of ours without one byte from the peer: it is gone
HANDSHAKE_S: Final = 5.0
PROMPT_BYTES: Final = 16 * 1024 * 1024  # four million tokens; what a context holds the engine says, politely
HELLO_BYTES: Final = 4096  # what a stranger may send in one header
BUFFER_BYTES: Final = 256 * 1024  # handed to the kernel ahead of need; what a first token may have to wait behind


@dataclass(frozen=True, slots=True)
class Terms:
    """What both sides of every connection of this worker share."""

    identity: Identity
    key: bytes
    page_bytes: int
    backend: Backend
    meter: Meter


class Link(asyncio.BufferedProtocol):
    """A `Channel`. `ready` is done once the peer is proven; or it fails with RefusedError or ConnectionError."""

    def __init__(self, side: Side, terms: Terms, owner: Owner) -> None:
        self._loop = asyncio.get_running_loop()
        self._terms = terms
        self._owner = owner
        self._handshake: Handshake | None = Handshake(side, terms.identity, terms.key)
        self._reader = FrameReader(self._admit, self._on_frame, HELLO_BYTES)
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._peer: Hello | None = None
        self._reason = ""
        self._urgent: deque[tuple[bytes, bytes | memoryview]] = deque()
        self._outbox = Outbox()
        self._rate = Rate()
        self._side = side
        self._lane: Lane | None = None  # None: pages are bytes of this connection
        self._lent: Lane | None = None  # offered; the peer has not answered
        self._borrowing: asyncio.Task[None] | None = None
        self._linked = ""  # the backend that this connection is counted under
        self._paused = False
        self._silent = 0
        self.ready: asyncio.Future[Hello] = self._loop.create_future()
        self.ready.add_done_callback(lambda done: done.cancelled() or done.exception())  # heard, even if nobody waits

    # --- what the two sides of a transfer use -------------------------------------------------------------------

    @property
    def peer(self) -> Hello:
        """Who is at the other end; only once `ready`."""
        if self._peer is None:
            raise WireError("the handshake is not done")
        return self._peer

    @property
    def backlog(self) -> int:
        """Bytes of pages that the peer has not taken."""
        return self._outbox.waiting + self._outbox.flying

    @property
    def backend(self) -> str:
        """How pages travel now, whatever was asked for."""
        return "tcp" if self._lane is None else self._lane.name

    @property
    def fence(self) -> Fence:
        """What proves that no write of the peer can land any more."""
        return Fence.CONNECTION if self._lane is None else self._lane.fence

    @property
    def alive(self) -> bool:
        """May messages still be sent?"""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, message: Message, body: bytes | memoryview = b"") -> None:
        """A small message, ahead of all waiting pages."""
        self._urgent.append((frame_head(encode(message), len(body)), body))
        self._pump()

    def push(self, generation: Generation, chunk: Chunk, body: memoryview) -> None:
        """A frame of pages, behind every small message."""
        self._outbox.add(generation, chunk, body)
        self._pump()

    def finish(self, generation: Generation, message: Message) -> None:
        """A transfer's last word, behind its pages."""
        self._outbox.finish(generation, message)
        self._pump()

    def drop(self, generation: Generation) -> None:
        """Forget this generation's waiting pages."""
        self._outbox.drop(generation)

    def close(self, reason: str) -> None:
        """End the connection after what was written; the owner hears `reason`."""
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> None:
        """End the connection at once."""
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()

    def revoke(self) -> bool:
        """Pages that come as bytes of this connection have no key: its end is the fence."""
        return self._lane is not None and self._lane.revoke()

    # --- asyncio's side -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:  # noqa: D102
        # uvloop's transports are not subclasses of asyncio's, so the promise is for the type checker alone.
        self._transport = transport = cast("asyncio.Transport", transport)
        transport.set_write_buffer_limits(high=BUFFER_BYTES)
        keep_alive(transport.get_extra_info("socket"))
        self._timer = self._loop.call_later(HANDSHAKE_S, self.abort, f"no handshake within {HANDSHAKE_S:.0f} s")
        if self._handshake is not None:
            self._send_all(self._handshake.start().send)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002, D102
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:  # noqa: D102
        self._silent = 0
        try:
            self._reader.advance(nbytes)
        except WireError as error:
            self.abort(str(error))

    def eof_received(self) -> bool:  # noqa: D102
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: D102
        reason = self._reason or (str(exc) if exc else "the peer closed the connection")
        if self._timer is not None:
            self._timer.cancel()
        self._urgent.clear()
        self._outbox.clear()
        self._end_lanes()
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(reason))
        if self._peer is not None:
            self._owner.on_closed(self, reason)

    def pause_writing(self) -> None:  # noqa: D102
        self._paused = True

    def resume_writing(self) -> None:  # noqa: D102
        self._paused = False
        self._pump()

    # --- inside -------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        while not self._paused and self._urgent:
            self._write(transport, *self._urgent.popleft())
        while not self._paused and self._has_place() and (item := self._outbox.next()) is not None:
            self._leave(transport, item)
        self._tell_settled()

    def _has_place(self) -> bool:
        return self._lane is None or self._lane.room()

    def _leave(self, transport: asyncio.Transport, item: Item) -> None:
        message, body = item.message, item.body
        if body is not None:
            self._rate.sent(self._loop.time())
            if self._lane is not None:
                message, body = msgspec.structs.replace(message, at=self._lane.put(body)), None
        self._write(transport, frame_head(encode(message), len(body or b"")), body or b"")

    def _tell_settled(self) -> None:
        for generation in self._outbox.settled():
            self._owner.on_sent(self, generation)

    @staticmethod
    def _write(transport: asyncio.Transport, head: bytes, body: bytes | memoryview) -> None:
        if len(body):
            transport.writelines((head, body))
        else:
            transport.write(head)

    def _send_all(self, messages: tuple[Message, ...]) -> None:
        for message in messages:
            self.send(message)

    def _admit(self, message: AnyMessage, body_bytes: int) -> None:
        """Which bodies may follow which headers, exactly. Raises WireError."""
        if isinstance(message, Chunk):
            fits = body_bytes == (message.pages * self._terms.page_bytes if message.at == BESIDE else 0)
        elif isinstance(message, Prefill):
            fits = body_bytes % 4 == 0 and 0 < body_bytes <= PROMPT_BYTES
        else:
            fits = body_bytes == 0
        if not fits or (self._handshake is not None and body_bytes):
            raise WireError(f"{type(message).__name__} with a body of {body_bytes} B")

    def _on_frame(self, message: AnyMessage, header: bytes, body: memoryview) -> None:
        if self._handshake is not None:
            self._shake(self._handshake, message, header)
        elif isinstance(message, Chunk):
            self._hear_chunk(message, body)
        elif isinstance(message, Taken):
            self._hear_taken(message)
        elif isinstance(message, Lend | Borrowed):
            self._hear_of_lane(message)
        elif not isinstance(message, Ping):
            self._owner.on_message(self, message, body)

    def _hear_chunk(self, message: Chunk, body: memoryview) -> None:
        if message.at == BESIDE:
            if not self._linked:
                self._count_as("tcp")
        else:
            if self._lane is None:
                raise WireError("pages beside a connection that has no such place")
            body = self._lane.get(message.at, message.pages * self._terms.page_bytes)
        self._owner.on_message(self, message, body)
        self.send(Taken(generation=message.generation, size=len(body), at=message.at))

    def _hear_taken(self, message: Taken) -> None:
        if not self._outbox.taken(message.generation, message.size):
            raise WireError(f"{message.size} B were taken of a transfer that has not so many under way")
        if message.at != BESIDE:
            if self._lane is None:
                raise WireError("pages were taken from a place that was never lent")
            self._lane.free(message.at, message.size)
        if self._rate.taken(self._loop.time(), message.size, idle=not self._outbox.flying):
            self._terms.meter.bandwidth(self._rate.bytes_per_second or 0.0)
        self._pump()

    def _shake(self, handshake: Handshake, message: AnyMessage, header: bytes) -> None:
        step = handshake.receive(message, header)
        self._send_all(step.send)
        if step.refused:
            if not self.ready.done():
                self.ready.set_exception(RefusedError(step.refused))
            self.close(step.refused)
        elif step.peer is not None:
            self._start(step.peer)

    def _start(self, peer: Hello) -> None:
        self._handshake = None
        self._peer = peer
        self._reader.max_header = MAX_HEADER
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(PING_EVERY_S, self._tick)
        self._offer_lane()
        if not self.ready.done():
            self.ready.set_result(peer)

    # --- how pages travel ---------------------------------------------------------------------------------------

    def _offer_lane(self) -> None:
        """The writer offers its backend's lane once; until it is accepted, pages go over this connection."""
        if self._side is Side.OPENER:
            return
        lent = self._terms.backend.lend()
        if lent is None:
            self._count_as("tcp")
        else:
            self._lent, lend = lent
            self.send(lend)

    def _hear_of_lane(self, message: Lend | Borrowed) -> None:
        if isinstance(message, Lend):
            if self._side is Side.ANSWERER or self._borrowing is not None:
                raise WireError("only a prefill worker lends, and once")
            self._borrowing = self._loop.create_task(self._borrow(message))
        elif self._lent is None:
            raise WireError("nothing was lent")
        elif message.backend == self._lent.name:
            self._use(self._lent)
            self._lent = None
        else:
            LOG.warning("pages for %s travel over tcp: %s", self.peer.worker, message.reason)
            self._lent.close()
            self._lent = None
            self._count_as("tcp")

    async def _borrow(self, lend: Lend) -> None:
        try:
            lane = await self._terms.backend.borrow(lend)
        except LaneError as error:
            LOG.warning("pages from %s travel over tcp: %s", self.peer.worker, error)
            self._count_as("tcp")
            self.send(Borrowed(backend="tcp", reason=str(error)[:512]))
            return
        if not self.alive:
            lane.close()
            return
        self._use(lane)
        self.send(Borrowed(backend=lane.name))

    def _use(self, lane: Lane) -> None:
        self._lane = lane
        self._outbox.ordered = lane.ordered
        self._count_as(lane.name)
        LOG.info("pages between this worker and %s travel by %s", self.peer.worker, lane.name)

    def _count_as(self, backend: str) -> None:
        if self._linked:
            self._terms.meter.linked(self._linked, -1)
        self._linked = backend
        if backend:
            self._terms.meter.linked(backend, 1)

    def _end_lanes(self) -> None:
        self._count_as("")
        if self._borrowing is not None:
            self._borrowing.cancel()
        for lane in (self._lane, self._lent):
            if lane is not None:
                lane.close()

    # --- signs of life ------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        # Counted in pings, not in seconds: a loop that was late itself must not take its peer for dead.
        self._silent += 1
        if self._silent > SILENT_PINGS:
            self.abort(f"no sign of life for {SILENT_PINGS * PING_EVERY_S:.0f} s")
            return
        if not self._urgent:  # a peer that does not read gets no pile of pings
            self.send(Ping())
        self._timer = self._loop.call_later(PING_EVERY_S, self._tick)


def keep_alive(sock: socket.socket | None) -> None:
    """The kernel's own probes find a peer whose machine is gone; small messages leave at once."""
    if sock is None:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 2), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
