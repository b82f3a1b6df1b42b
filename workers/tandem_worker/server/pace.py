"""When a request's tokens came, for the worker's histograms."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tandem_worker.metrics import Metrics


@dataclass(slots=True)
class Pace:
    """Seconds of the monotonic clock, from the request's arrival on."""

    metrics: Metrics
    arrived: float = field(default_factory=time.monotonic)
    first: float = 0.0
    last: float = 0.0
    tokens: int = 0

    def tick(self) -> None:
        """One token is here."""
        now = time.monotonic()
        if self.tokens:
            self.metrics.gap.observe(now - self.last)
        else:
            self.first = now
            self.metrics.ttft.observe(now - self.arrived)
        self.last = now
        self.tokens += 1

    def finish(self) -> None:
        """The answer is complete."""
        self.metrics.e2e.observe(time.monotonic() - self.arrived)
        if self.tokens > 1:
            self.metrics.tpot.observe((self.last - self.first) / (self.tokens - 1))
