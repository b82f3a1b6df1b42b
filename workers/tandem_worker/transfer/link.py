"""One connection between two workers: handshake, frames, signs of life, and small messages ahead of pages."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, cast

import msgspec

from tandem_worker.transfer import signs
from tandem_worker.transfer.base import Fence
from tandem_worker.transfer.bodies import FRAME_BESIDE_BYTES, has_its_body
from tandem_worker.transfer.handshake import Handshake, RefusedError, Side
from tandem_worker.transfer.incoming import Incoming
from tandem_worker.transfer.lanes import Lanes
from tandem_worker.transfer.outbox import WINDOW_BYTES, Item, Outbox
from tandem_worker.transfer.probe import Prober, nowhere
from tandem_worker.transfer.rate import Rate
from tandem_worker.transfer.reshard import shares_of
from tandem_worker.transfer.sockets import keep_alive
from tandem_worker.transfer.wire import (
    AnyMessage,
    Borrowed,
    Chunk,
    FrameReader,
    Generation,
    Hello,
    Lend,
    Message,
    Ping,
    Probe,
    Probed,
    Taken,
    WireError,
    decode_strangers,
    encode,
    frame_head,
)

if TYPE_CHECKING:
    from tandem_worker.engine.lending import Loan
    from tandem_worker.transfer.base import Owner
    from tandem_worker.transfer.terms import Terms

HANDSHAKE_S: Final = 5.0
HELLO_BYTES: Final = 4096  # what a stranger may send in one header
BUFFER_BYTES: Final = 256 * 1024  # handed to the kernel ahead of need; what a first token may have to wait behind


class Link(asyncio.BufferedProtocol):
    """A `Channel`. `ready` is done once the peer is proven; or it fails with RefusedError or ConnectionError.

    A further connection joins a first one to the same peer: it carries frames of pages, in no order with the rest, and
    all end together. Its opener gives the first one; its answerer finds it by the nonce that the hello names.
    """

    def __init__(
        self,
        side: Side,
        terms: Terms,
        owner: Owner,
        joins: Link | None = None,
        find: Callable[[bytes], Link | None] = lambda nonce: None,  # noqa: ARG005 - nobody is found
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._terms = terms
        self._owner = owner
        self._handshake: Handshake | None = Handshake(side, terms.identity, terms.key, joins.nonce if joins else b"")
        self.nonce: bytes = self._handshake.nonce  # of the opener, once that is known: what names this connection
        self._reader = FrameReader(self._admit, self._on_frame, HELLO_BYTES, self._place, decode_strangers)
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._peer: Hello | None = None
        self._reason = ""
        self._urgent: deque[tuple[bytes, bytes | memoryview]] = deque()
        self._heads: list[bytes | memoryview] = []  # what leaves with the next write
        self._outbox = Outbox()
        self._rate = Rate()
        self._side = side
        self._lanes = Lanes(terms.backend, terms.meter, self.send)
        self._prober = Prober(self._rate, self._loop.time, self.send, terms.meter, self._lanes, self.abort)
        self.incoming = Incoming(self, self._lanes, owner, terms.page_bytes)
        self._joins = joins
        self._find = find
        self._turn = 0
        self._others: list[Link] = []  # further connections to the same peer, for pages alone
        self.paused = False  # more than enough waits in the kernel's and the transport's buffers
        self._gone = False
        self._signs = signs.Signs()
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
    def shares(self) -> int:
        """Into how many parts the ranks of the peer split a page."""
        return shares_of(self.peer.tensor, self.peer.kv_heads)

    @property
    def backlog(self) -> int:
        """Bytes of pages that the peer has not taken."""
        return self._outbox.waiting + self._outbox.flying

    @property
    def frame_bytes(self) -> int:
        """The longest frame that may be pushed now."""
        return self._terms.frame_bytes if self._lanes.lane is None else FRAME_BESIDE_BYTES

    @property
    def bandwidth(self) -> float | None:
        """Bytes of pages per second that the peer takes; None: not known yet."""
        return self._rate.bytes_per_second

    @property
    def backend(self) -> str:
        """How pages travel now, whatever was asked for."""
        return self._lanes.name

    @property
    def fence(self) -> Fence:
        """What proves that no write of the peer can land any more."""
        return Fence.CONNECTION if self._lanes.lane is None else self._lanes.lane.fence

    @property
    def transport(self) -> asyncio.Transport | None:
        """What bytes are written to."""
        return self._transport

    @property
    def alive(self) -> bool:
        """May messages still be sent?"""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, message: Message, body: bytes | memoryview = b"") -> None:
        """A small message, ahead of all waiting pages."""
        self._urgent.append((frame_head(encode(message), len(body)), body))
        self.pump()

    def push(self, generation: Generation, chunk: Chunk, body: Loan) -> None:
        """A frame of pages, behind every small message."""
        self._outbox.add(generation, chunk, body)
        self.pump()

    def finish(self, generation: Generation, message: Message) -> None:
        """A transfer's last word, behind its pages."""
        self._outbox.finish(generation, message)
        self.pump()

    def drop(self, generation: Generation) -> None:
        """Forget this generation's waiting pages."""
        self._outbox.drop(generation)

    def close(self, reason: str) -> None:
        """End the connection after what was written; the owner hears `reason`."""
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.close()

    @property
    def over(self) -> bool:
        """Is the connection gone, and does nothing come in beside it any more?"""
        connected = self._transport is not None and not self._gone
        return not connected and not (self._lanes.lane and self._lanes.lane.flying)

    def abort(self, reason: str) -> None:
        """End the connection at once."""
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()

    def revoke(self) -> bool:
        """Pages that come as bytes of this connection have no key: its end is the fence."""
        return self._lanes.lane is not None and self._lanes.lane.revoke()

    # --- asyncio's side -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:  # noqa: D102
        # uvloop's transports are not subclasses of asyncio's, so the promise is for the type checker alone.
        self._transport = transport = cast("asyncio.Transport", transport)
        transport.set_write_buffer_limits(high=BUFFER_BYTES)
        keep_alive(transport.get_extra_info("socket"))
        self._timer = self._loop.call_later(HANDSHAKE_S, self.abort, f"no handshake within {HANDSHAKE_S:.0f} s")
        if self._handshake is not None:
            for message in self._handshake.start().send:
                self.send(message)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002, D102
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:  # noqa: D102
        self._signs.heard()
        try:
            self._reader.advance(nbytes)
        except WireError as error:
            self.abort(str(error))
        except MemoryError:
            self.abort("there is no memory for what the peer sends")

    def eof_received(self) -> bool:  # noqa: D102
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: D102
        self._gone = True
        reason = self._reason or (str(exc) if exc else "the peer closed the connection")
        if self._timer is not None:
            self._timer.cancel()
        self._urgent.clear()
        self._outbox.clear()
        self._lanes.close()
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(reason))
        for other in (*self._others, *((self._joins,) if self._joins else ())):
            other.abort(reason)
        if self._peer is not None and not self._joins:
            self._owner.on_closed(self, reason)
            self._lanes.when_idle(lambda: self._owner.on_closed(self, reason))  # its key can only now be ended

    def pause_writing(self) -> None:  # noqa: D102
        self.paused = True

    def resume_writing(self) -> None:  # noqa: D102
        self.paused = False
        self.pump()
        if self._joins is not None:
            self._joins.pump()

    # --- inside -------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Whatever may leave now does."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        while not self.paused and self._urgent:
            head, body = self._urgent.popleft()
            self._write(transport, head, (body,) if len(body) else ())
        while (way := self._way()) is not None and (item := self._outbox.next()) is not None:
            self._leave(way if item.body is not None else transport, item)
        self._flush(transport)
        for generation in self._outbox.settled():
            self._owner.on_sent(self, generation)

    def _way(self) -> asyncio.Transport | None:
        """The connection whose turn it is among those that have room. None: no frame may leave now."""
        open_ones = [link for link in (self, *self._others) if link.alive and not link.paused]
        if not open_ones:
            return None
        self._turn += 1
        return open_ones[self._turn % len(open_ones)].transport

    def _leave(self, way: asyncio.Transport, item: Item) -> None:
        message, pieces, lane = item.message, [], self._lanes.lane
        if item.body is not None:
            self._rate.sent(self._loop.time())
            pieces = item.body.pieces
            if lane is not None and (spans := lane.spans(pieces)):
                message, pieces = msgspec.structs.replace(message, at=spans), []
                lane.under_way(True)
            elif lane is not None:
                self._terms.meter.copied(item.body.size)
        self._write(way, frame_head(encode(message), sum(map(len, pieces))), pieces)

    def _write(self, transport: asyncio.Transport, head: bytes, pieces: Sequence[bytes | memoryview]) -> None:
        """Words without a body leave together, in one call of the kernel; in their order with the rest."""
        if transport is self._transport:
            self._heads.append(head)
            if pieces:
                self._heads.extend(pieces)
                self._flush(transport)
        else:
            transport.writelines((head, *pieces))

    def _flush(self, transport: asyncio.Transport) -> None:
        if self._heads:
            heads, self._heads = self._heads, []
            transport.writelines(heads)

    def _admit(self, message: AnyMessage, body_bytes: int) -> None:
        """Which bodies may follow which headers, exactly. Raises WireError."""
        fits = has_its_body(message, body_bytes, self._terms.page_bytes, self._terms.frame_bytes)
        if isinstance(message, Probe):
            fits = self._side is Side.OPENER and self._joins is None and self._prober.admits(message, body_bytes)
        if not fits or (self._handshake is not None and body_bytes):
            raise WireError(f"{type(message).__name__} with a body of {body_bytes} B")

    def _place(self, message: AnyMessage, body_bytes: int) -> Sequence[memoryview] | None:
        """Where a body goes at once, without lying in a buffer first. Raises WireError."""
        if isinstance(message, Probe):
            return nowhere(body_bytes)
        if self._handshake is not None or not isinstance(message, Chunk):
            return None
        return self._owner.place(self._joins or self, message)

    def _on_frame(self, message: AnyMessage, header: bytes, body: memoryview | None) -> None:
        if self._handshake is not None:
            self._shake(self._handshake, message, header)
        elif isinstance(message, Chunk):
            (self._joins or self).incoming.hear(message, placed=body is None)
        elif self._joins is not None:
            if not isinstance(message, Ping):
                raise WireError(f"{type(message).__name__} on a connection for pages alone")
        elif isinstance(message, Taken):
            self._hear_taken(message)
        elif isinstance(message, Lend | Borrowed | Probe | Probed):
            self._hear_of_way(message)
        elif body is not None and not isinstance(message, Ping):
            self._owner.on_message(self, message, body)

    def _hear_of_way(self, message: Lend | Borrowed | Probe | Probed) -> None:
        if isinstance(message, Probe | Probed):
            self._prober.hear(message)
        else:
            self._lanes.hear(message, reads=self._side is Side.OPENER)
            self._order()
            if isinstance(message, Borrowed):
                self._prober.begin()
        self._tell_lane()

    def _order(self) -> None:
        """Is a frame there when a word behind it is?"""
        self._outbox.ordered = self._lanes.lane is None and not self._others
        self._outbox.window = WINDOW_BYTES if self._lanes.lane is None else 4 * FRAME_BESIDE_BYTES

    def _tell_lane(self) -> None:
        """Does the peer read now?"""
        if self._lanes.lane is not None:
            self._lanes.lane.under_way(self._outbox.flying > 0 or self._prober.waiting)

    def _hear_taken(self, message: Taken) -> None:
        self._signs.took()
        if not self._outbox.taken(message.generation, message.first_page, message.size):
            raise WireError(f"{message.size} B from page {message.first_page} on were taken, and are not under way")
        self._tell_lane()
        if self._rate.taken(self._loop.time(), message.size, idle=not self._outbox.flying):
            self._terms.meter.bandwidth(self._rate.bytes_per_second or 0.0)
        self._terms.meter.busy(self._rate.settle())
        self.pump()

    def _shake(self, handshake: Handshake, message: AnyMessage, header: bytes) -> None:
        step = handshake.receive(message, header)
        for word in step.send:
            self.send(word)
        if step.refused:
            if not self.ready.done():
                self.ready.set_exception(RefusedError(step.refused))
            self.close(step.refused)
        elif step.peer is not None:
            self._start(step.peer)

    def _start(self, peer: Hello) -> None:
        self._handshake = None
        self._peer = peer
        self._reader.trust()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(signs.PING_EVERY_S, self._tick)
        if self._side is Side.ANSWERER:
            self.nonce = peer.nonce
            if peer.joins:
                self._joins = self._find(peer.joins)
                if self._joins is None or self._joins.peer.incarnation != peer.incarnation:
                    raise WireError("there is no connection to join")
        if self._joins is not None:
            self._joins.joined_by(self)
        elif self._side is Side.ANSWERER and not self._lanes.offer():
            self._prober.begin()
        if not self.ready.done():
            self.ready.set_result(peer)

    def joined_by(self, other: Link) -> None:
        """One more connection to the same peer, for pages."""
        self._others.append(other)
        self._order()

    # --- signs of life ------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        if reason := self._signs.missing(under_way=self._outbox.flying > 0):
            self.abort(reason)
            return
        self._tell_lane()
        if not self._urgent:  # a peer that does not read gets no pile of pings
            self.send(Ping())
        self._timer = self._loop.call_later(signs.PING_EVERY_S, self._tick)
