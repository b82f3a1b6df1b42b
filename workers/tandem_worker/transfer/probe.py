"""A link is measured before its first page travels: one small run of zeros from P, and D's word that it is there.

It gives the rate of a young connection, round trip and all, so the first real sample takes its place. Only where pages
are bytes of the connection: what is read in place (shm, NIXL, Mooncake) is unknown until something has been.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tandem_worker.transfer.rate import LEAST_BYTES, Rate
from tandem_worker.transfer.wire import Probe, Probed, WireError

if TYPE_CHECKING:
    from tandem_worker.transfer.base import Meter

PROBE_BYTES: Final = 2 * LEAST_BYTES
ANSWER_S: Final = 2.0  # an answer that comes later says nothing, and is not waited for
ZEROS: Final = bytes(PROBE_BYTES)
Send = Callable[..., None]  # send(message, body)


class Prober:
    """One connection's, either end. Each end may say its word once."""

    def __init__(self, rate: Rate, clock: Callable[[], float], send: Send, meter: Meter) -> None:
        self._rate = rate
        self._clock = clock
        self._send = send
        self._meter = meter
        self._sent_at: float | None = None
        self._heard = False

    def begin(self) -> None:
        """P: the zeros leave now."""
        self._sent_at = self._clock()
        self._send(Probe(), ZEROS)

    def admits(self, size: int) -> bool:
        """D: may a probe of so many bytes come? Judged before they are read."""
        return not self._heard and 0 < size <= PROBE_BYTES

    def hear(self, message: Probe | Probed) -> None:
        """The peer's word. Raises WireError for an answer where nothing was asked, or a second one."""
        if isinstance(message, Probe):
            self._heard = True
            self._send(Probed())
            return
        if self._sent_at is None:
            raise WireError("a probe was answered that was never sent")
        seconds, self._sent_at = self._clock() - self._sent_at, None
        if seconds <= ANSWER_S and self._rate.guess(PROBE_BYTES, seconds):
            self._meter.bandwidth(self._rate.bytes_per_second or 0.0)
