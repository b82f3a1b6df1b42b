"""Quantiles of very many values in little memory: counts of buckets that grow by a fixed ratio (DDSketch, VLDB'19)."""

from __future__ import annotations

from math import ceil, log

ERROR = 0.005  # relative, of any quantile
RATIO = (1 + ERROR) / (1 - ERROR)  # of a bucket's bounds (section 2.2 there)
LEAST = 1e-9  # what is smaller counts as this


class Sketch:
    """Values of 0 or more, in any unit."""

    __slots__ = ("_buckets", "count")

    def __init__(self) -> None:
        """No values."""
        self.count = 0
        self._buckets: dict[int, int] = {}

    def add(self, value: float) -> None:
        """One more value; NaN is none."""
        if value >= 0:
            bucket = ceil(log(max(value, LEAST)) / log(RATIO))
            self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
            self.count += 1

    def copy(self) -> Sketch:
        """Another one with the same values."""
        made = Sketch()
        made.count, made._buckets = self.count, dict(self._buckets)
        return made

    def quantile(self, percent: int) -> float | None:
        """The nearest-rank percentile, within ERROR of the value itself; None for no values."""
        left = max(-(-self.count * percent // 100), 1)
        for bucket in sorted(self._buckets):
            left -= self._buckets[bucket]
            if left <= 0:
                return float(2 * RATIO**bucket / (RATIO + 1))
        return None
