"""Percentiles and attainment over a window of intended send times. What never came counts as infinitely late."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from e2e.load.result import Result, Status


@dataclass(frozen=True, slots=True)
class Summary:
    """Milliseconds at `percentile` (infinity: too many never got there; NaN: none was due). `attainment`: 0..1."""

    due: int
    ok: int
    failed: int
    unfinished: int
    percentile: float
    ttft_ms: float
    tpot_ms: float
    attainment: float | None

    def words(self) -> str:
        """One line for people."""
        share = "unknown" if self.attainment is None else f"{self.attainment:.1%}"
        return (
            f"{self.due} requests: {self.ok} ok, {self.failed} failed, {self.unfinished} unfinished; "
            f"p{self.percentile:g} TTFT {self.ttft_ms:,.0f} ms, TPOT {self.tpot_ms:,.1f} ms; both met by {share}"
        )


def summary(
    results: Iterable[Result],
    percentile: float,
    ttft_ms: float,
    tpot_ms: float,
    *,
    start_s: float = 0.0,
    end_s: float = math.inf,
) -> Summary:
    """Figures of the requests due in [start_s, end_s), against the targets `ttft_ms` and `tpot_ms`."""
    due = [r for r in results if start_s <= r.intended_s < end_s]
    paces = [tpot_or_never(r) * 1000 for r in due]
    met = sum(_met(r, ttft_ms, tpot_ms) for r in due)
    return Summary(
        due=len(due),
        ok=sum(r.status is Status.OK for r in due),
        failed=sum(r.status is Status.FAILED for r in due),
        unfinished=sum(r.status is Status.UNFINISHED for r in due),
        percentile=percentile,
        ttft_ms=nearest_rank([ttft_or_never(r) * 1000 for r in due], percentile),
        tpot_ms=nearest_rank([p for p in paces if not math.isnan(p)], percentile),
        attainment=met / len(due) if due else None,
    )


def nearest_rank(values: Sequence[float], percentile: float) -> float:
    """The smallest value that `percentile` per cent of them do not exceed; NaN of nothing."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(len(values) * percentile / 100) - 1)]


def ttft_or_never(result: Result) -> float:
    """Seconds; infinity when no token came, or the request failed."""
    return math.inf if result.ttft_s is None or result.status is Status.FAILED else result.ttft_s


def tpot_or_never(result: Result) -> float:
    """Seconds; infinity when it did not finish; NaN for a single token, which has no pace."""
    if result.status is not Status.OK:
        return math.inf
    return math.nan if result.tpot_s is None else result.tpot_s


def _met(result: Result, ttft_ms: float, tpot_ms: float) -> bool:
    pace = tpot_or_never(result) * 1000
    return ttft_or_never(result) * 1000 <= ttft_ms and (math.isnan(pace) or pace <= tpot_ms)
