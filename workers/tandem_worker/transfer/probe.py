"""A link is measured before its first page travels: small reads of what P lent, or runs of zeros.

The first one finds the way (a library connects, TCP starts slowly), the second is measured: the rate of a young
connection, round trip and all, so the first real sample takes its place. What D reads goes into memory of its own that
is nobody's page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from tandem_worker.transfer.rate import LEAST_BYTES, Rate
from tandem_worker.transfer.wire import Probe, Probed, Span, WireError

if TYPE_CHECKING:
    from tandem_worker.transfer.base import Meter
    from tandem_worker.transfer.lanes import Lanes

PROBE_BYTES: Final = 2 * LEAST_BYTES
PROBES: Final = 2
ANSWER_S: Final = 2.0  # an answer that comes later says nothing, and is not waited for
ZEROS: Final = bytes(PROBE_BYTES)
NOWHERE: Final = memoryview(bytearray(64 * 1024))  # shared by all connections: nobody looks at it
Send = Callable[..., None]  # send(message, body)


def nowhere(size: int) -> Sequence[memoryview]:
    """Memory for so many bytes that nobody wants; a worker that has none left to take can still measure its link."""
    whole, rest = divmod(size, len(NOWHERE))
    return [*[NOWHERE] * whole, *([NOWHERE[:rest]] if rest else [])]


class Prober:
    """One connection's, either end. `fail`: ends the connection, where its way turns out not to work."""

    def __init__(
        self,
        rate: Rate,
        clock: Callable[[], float],
        send: Send,
        meter: Meter,
        lanes: Lanes,
        fail: Callable[[str], None],
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._send = send
        self._meter = meter
        self._lanes = lanes
        self._fail = fail
        self._at: tuple[Span, ...] = ()
        self._sent_at: float | None = None
        self._sent = self._heard = 0

    @property
    def waiting(self) -> bool:
        """P: may an answer still come that says something?"""
        return self._sent_at is not None and self._clock() - self._sent_at <= ANSWER_S

    def begin(self) -> None:
        """P: both sides know how pages travel, and so goes the probe."""
        lane = self._lanes.lane
        self._at = () if lane is None else lane.sample(PROBE_BYTES)
        if lane is None or self._at:
            self._ask()

    def admits(self, probe: Probe, body_bytes: int) -> bool:
        """D: may this probe come, with so many bytes behind it? Judged before they are read."""
        size = body_bytes + probe.size_beside
        return self._heard < PROBES and 0 < size <= PROBE_BYTES and not (body_bytes and probe.at)

    def hear(self, message: Probe | Probed) -> None:
        """The peer's word. Raises WireError for an answer where nothing was asked, or a place that was not lent."""
        if isinstance(message, Probe):
            self._read(message)
        elif self._sent_at is None:
            raise WireError("a probe was answered that was never sent")
        else:
            seconds, self._sent_at = self._clock() - self._sent_at, None
            self._learn(seconds)

    def _ask(self) -> None:
        self._sent += 1
        self._sent_at = self._clock()
        self._send(Probe(at=self._at), b"" if self._at else ZEROS)

    def _learn(self, seconds: float) -> None:
        if self._sent < PROBES:
            self._ask()
        elif seconds <= ANSWER_S and self._rate.guess(sum(span.size for span in self._at) or PROBE_BYTES, seconds):
            self._meter.bandwidth(self._rate.bytes_per_second or 0.0)

    def _read(self, probe: Probe) -> None:
        self._heard += 1
        read = self._lanes.probe(probe.at) if probe.at else None
        if read is None:
            self._send(Probed())
        else:
            read.add_done_callback(self._have_read)

    def _have_read(self, read: asyncio.Future[None]) -> None:
        if read.cancelled():
            return  # the connection is gone
        if error := read.exception():
            self._fail(str(error))
        else:
            self._send(Probed())
