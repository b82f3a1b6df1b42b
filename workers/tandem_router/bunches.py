"""How unevenly requests arrive: counts in bins of equal length, summed as squares."""

from __future__ import annotations

LONGEST_S = 5.0  # a bin; what comes in longer bunches shows in the rate


class Bunches:
    """Bins as long as the TTFT target: requests that come together within it can still all be in time."""

    def __init__(self, ttft_s: float) -> None:
        self.bin_s = min(ttft_s, LONGEST_S)
        self._bin = self._count = 0

    def arrive(self, now: float) -> int:
        """One more arrival at `now` (seconds, never back): what it adds to the sum of the squared counts."""
        place = int(now / self.bin_s)
        if place != self._bin:
            self._bin, self._count = place, 0
        self._count += 1
        return 2 * self._count - 1  # n² - (n - 1)²
