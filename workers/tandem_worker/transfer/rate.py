"""How fast a link is: bytes that the peer has taken over the time that any were under way. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LEAST_BYTES: Final = 256 * 1024  # less than that measures the round trip
PERIOD_BYTES: Final = 32 * 1024 * 1024  # a link that is never idle is looked at this often
WEIGHT: Final = 0.2  # of a new sample


@dataclass(slots=True)
class Rate:
    """An exponentially weighted mean over busy periods; time in which nothing was under way does not count."""

    bytes_per_second: float | None = None
    _guessed: bool = False  # by a probe: the first real sample takes its place
    _busy_s: float = 0.0
    _since: float | None = None
    _moved: int = 0

    def sent(self, now: float) -> None:
        """Something is under way (again)."""
        if self._since is None:
            self._since, self._moved = now, 0

    def taken(self, now: float, size: int, *, idle: bool) -> bool:
        """So much has arrived; `idle`: nothing is under way any more. Is there a new mean?"""
        if self._since is None:
            return False
        self._moved += size
        if not idle and self._moved < PERIOD_BYTES:
            return False
        self._busy_s += now - self._since
        new = self._sample(now - self._since)
        self._since, self._moved = (None if idle else now), 0
        return new

    def guess(self, size: int, seconds: float) -> bool:
        """So many bytes that were no pages took so long. Is that the best that is known?"""
        if seconds <= 0 or not (self._guessed or self.bytes_per_second is None):
            return False
        self.bytes_per_second, self._guessed = size / seconds, True
        return True

    def settle(self) -> float:
        """Seconds in which pages were under way, in periods that ended since this was last asked."""
        seconds, self._busy_s = self._busy_s, 0.0
        return seconds

    def _sample(self, seconds: float) -> bool:
        if self._moved < LEAST_BYTES or seconds <= 0:
            return False
        rate = self._moved / seconds
        before = None if self._guessed else self.bytes_per_second
        self._guessed = False
        self.bytes_per_second = rate if before is None else before + WEIGHT * (rate - before)
        return True
