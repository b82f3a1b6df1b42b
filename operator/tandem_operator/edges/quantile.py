"""A quantile of a histogram, as Prometheus computes it; but what lies beyond the buckets is said, not guessed."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Quantile:
    """A quantile in seconds; `beyond` = it lies above the highest finite bound, which `seconds` then is."""

    seconds: float
    beyond: bool = False


def quantile(share: float, buckets: Iterable[tuple[float, float]]) -> Quantile | None:
    """The `share` quantile (0..1) of cumulative buckets (upper bound in seconds, rate or count).

    Linear between a bucket's bounds, the lowest bucket starts at 0 (Prometheus, `histogram_quantile`). None where
    nothing was counted, or where there is no +Inf bucket or no finite one: no traffic is no measurement.
    """
    ordered = sorted(buckets)
    if len(ordered) < 2 or ordered[-1][0] != inf or not all(isfinite(count) for _, count in ordered):
        return None
    total = ordered[-1][1]
    if total <= 0:
        return None
    rank = share * total
    lower, below = 0.0, 0.0
    for bound, count in ordered[:-1]:
        # Rates of cumulative buckets that were scraped apart can fall by an ulp: never let them go down.
        cumulative = max(count, below)
        if cumulative >= rank and cumulative > below:
            return Quantile(lower + (bound - lower) * (rank - below) / (cumulative - below))
        lower, below = bound, cumulative
    return Quantile(ordered[-2][0], beyond=True)
