"""How the two ends of a connection agree on the way that pages travel; what is reported is what they agreed on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tandem_worker.transfer.base import LaneError
from tandem_worker.transfer.wire import Borrowed, Lend, Message, Span, WireError

if TYPE_CHECKING:
    from tandem_worker.transfer.base import Backend, Lane, Meter

LOG = logging.getLogger(__name__)


class Lanes:
    """One connection's. `lane` None: pages are bytes of the connection itself."""

    def __init__(self, backend: Backend, meter: Meter, send: Callable[[Message], None]) -> None:
        self.lane: Lane | None = None
        self._backend = backend
        self._meter = meter
        self._send = send
        self._lent: Lane | None = None  # offered; the peer has not answered
        self._borrowing: asyncio.Task[None] | None = None
        self._counted = ""  # the backend that this connection is counted under
        self._closed = False

    @property
    def name(self) -> str:
        """The backend in use."""
        return "tcp" if self.lane is None else self.lane.name

    def offer(self) -> bool:
        """The writer offers its backend's lane, if it has one; until it is accepted, pages go over the connection."""
        lent = self._backend.lend()
        if lent is None:
            self._count_as("tcp")
            return False
        self._lent, lend = lent
        self._send(lend)
        return True

    def hear(self, message: Lend | Borrowed, *, reads: bool) -> None:
        """The peer's word; `reads`: this end is the reader. Raises WireError where it makes no sense."""
        if isinstance(message, Lend):
            if not reads or self._borrowing is not None:
                raise WireError("only a prefill worker lends, and once")
            self._borrowing = asyncio.get_running_loop().create_task(self._borrow(message))
        elif self._lent is None:
            raise WireError("nothing was lent")
        else:
            self._answered(self._lent, message)

    def heard_here(self) -> None:
        """Pages came as bytes of the connection itself."""
        if not self._counted:
            self._count_as("tcp")

    def fetch(self, spans: Sequence[Span], pieces: Sequence[memoryview]) -> asyncio.Future[None] | None:
        """Bring pages to where they belong: see Lane. Raises WireError for a place that was not agreed on."""
        if self.lane is None:
            raise WireError("pages beside a connection that has no such place")
        return self.lane.fetch(spans, pieces)

    def probe(self, spans: Sequence[Span]) -> asyncio.Future[None] | None:
        """Read what is no page, to nowhere. Raises WireError for a place that was not agreed on, LaneError."""
        scratch = memoryview(b"") if self.lane is None else self.lane.scratch
        return self.fetch(spans, [scratch[: sum(span.size for span in spans)]])

    def when_idle(self, call: Callable[[], None]) -> None:
        """After the connection's end: `call` once nothing comes in by the lane, unless nothing does already."""
        if self.lane is not None:
            self.lane.flying.at_end(call)

    def close(self) -> None:
        """The connection is gone."""
        self._closed = True
        self._count_as("")
        for lane in (self.lane, self._lent):
            if lane is not None:
                lane.close()

    def _answered(self, lent: Lane, message: Borrowed) -> None:
        self._lent = None
        if message.backend == lent.name:
            self._use(lent)
        else:
            LOG.warning("pages travel over tcp: %s", message.reason)
            lent.close()
            self._count_as("tcp")

    async def _borrow(self, lend: Lend) -> None:
        try:
            lane = await self._backend.borrow(lend)
        except LaneError as error:
            LOG.warning("pages travel over tcp: %s", error)
            self._count_as("tcp")
            self._send(Borrowed(backend="tcp", reason=str(error)[:512]))
            return
        if self._closed:
            lane.close()
        else:
            self._use(lane)
            self._send(Borrowed(backend=lane.name))

    def _use(self, lane: Lane) -> None:
        self.lane = lane
        self._count_as(lane.name)
        LOG.info("pages travel by %s", lane.name)

    def _count_as(self, backend: str) -> None:
        if self._closed:
            backend = ""
        if self._counted:
            self._meter.linked(self._counted, -1)
        self._counted = backend
        if backend:
            self._meter.linked(backend, 1)
