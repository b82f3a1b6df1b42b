"""Was it true? Client-side figures of a load, over windows of intended send times."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """One request as its client saw it; seconds since the load began. None: it never came."""

    intended: float
    ttft: float | None
    tpot: float | None  # None with a single output token too
    finished: bool


@dataclass(frozen=True, slots=True)
class Figures:
    """Percentiles in milliseconds over a window; infinity where too many requests never got that far."""

    n: int
    ttft_ms: float
    tpot_ms: float


@dataclass(frozen=True, slots=True)
class Targets:
    """The resource's SLO."""

    ttft_ms: int
    tpot_ms: int
    percentile: int

    def met_by(self, seen: Figures, role: str) -> bool:
        """Does the role's own figure meet its target? Prefill answers for TTFT, decode for TPOT."""
        return seen.ttft_ms <= self.ttft_ms if role == "prefill" else seen.tpot_ms <= self.tpot_ms


def percentile(values: Sequence[float], q: int) -> float:
    """The smallest value that `q` per cent of them do not exceed (nearest rank); NaN of nothing."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(len(values) * q / 100) - 1)]


def figures(samples: Iterable[Sample], start: float, end: float, q: int) -> Figures:
    """Figures over the requests that were due in [start, end); what never came counts as infinitely late."""
    due = [s for s in samples if start <= s.intended < end]
    ttft = [math.inf if s.ttft is None else s.ttft * 1000 for s in due]
    tpot = [math.inf if s.tpot is None else s.tpot * 1000 for s in due if s.tpot is not None or not s.finished]
    return Figures(len(due), percentile(ttft, q), percentile(tpot, q))
