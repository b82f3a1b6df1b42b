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
        new = self._sample(now - self._since)
        self._since, self._moved = (None if idle else now), 0
        return new

    def _sample(self, seconds: float) -> bool:
        if self._moved < LEAST_BYTES or seconds <= 0:
            return False
        rate = self._moved / seconds
        before = self.bytes_per_second
        self.bytes_per_second = rate if before is None else before + WEIGHT * (rate - before)
        return True
