"""What Prometheus would scrape from a worker."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Totals since the start; busy in seconds. Kept by the role that the worker had at the time."""

    prefill_busy: float = 0.0
    prefill_tokens: float = 0.0
    decode_busy: float = 0.0
    decode_steps: float = 0.0
    decode_tokens: float = 0.0

    def add(self, part: Counters) -> None:
        """Total += part."""
        self.prefill_busy += part.prefill_busy
        self.prefill_tokens += part.prefill_tokens
        self.decode_busy += part.decode_busy
        self.decode_steps += part.decode_steps
        self.decode_tokens += part.decode_tokens


class Bunches:
    """How unevenly requests arrive: counts in bins of equal length, summed as squares."""

    __slots__ = ("_bin", "_count", "bin_s", "squares")

    def __init__(self) -> None:
        """Nothing has arrived; who observes says how long a bin is."""
        self.bin_s, self.squares = 1.0, 0
        self._bin = self._count = 0

    def add(self, at: float) -> None:
        """One more arrival; times do not go back."""
        place = int(at / self.bin_s)
        if place != self._bin:
            self._bin, self._count = place, 0
        self._count += 1
        self.squares += 2 * self._count - 1  # (n + 1)² - n²
