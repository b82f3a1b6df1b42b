"""kthena: a metric over its target for each role, then a ratio of replicas that may not be left.

Source: volcano-sh/kthena pkg/autoscaler/algorithm/{recommendation,disaggregated_ratio}.go; behaviour defaults from its
AutoscalingPolicy type (1 instance or 100 % every 15 s). The ratio counts replicas, whatever their GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor
from typing import TYPE_CHECKING

from tandem_operator.plan.facts import Role
from tandem_operator.plan.policies.base import bounds, desired, go, hold, start
from tandem_operator.plan.policies.hpa import Hpa, words

if TYPE_CHECKING:
    from datetime import datetime

    from tandem_operator.plan.facts import Decision, Observed

EPSILON = 1e-9


def enforce_ratio(
    prefill: int, decode: int, low: float, high: float, of_prefill: tuple[int, int], of_decode: tuple[int, int]
) -> tuple[int, int]:
    """The counts with low <= prefill/decode <= high inside both bounds; unchanged where no pair fits.

    Decode is the denominator. The search starts at the decode count (raised, where there are too many prefill
    workers, to what they need), goes up first, then down: it prefers adding to taking away.
    """
    if decode > 0 and low - EPSILON <= prefill / decode <= high + EPSILON:
        return prefill, decode
    least = max(1, of_decode[0], ceil(of_prefill[0] / high - EPSILON))
    most = min(of_decode[1], floor(of_prefill[1] / low + EPSILON)) if low > 0 else of_decode[1]
    begin = min(max(decode, least, ceil(prefill / high - EPSILON) if prefill > high * decode else 0), most)
    for count in [*range(begin, most + 1), *range(begin - 1, least - 1, -1)]:
        smallest = max(of_prefill[0], ceil(low * count - EPSILON))
        largest = min(of_prefill[1], floor(high * count + EPSILON))
        if smallest <= largest:
            return min(max(prefill, smallest), largest), count
    return prefill, decode


@dataclass(frozen=True, slots=True)
class Kthena:
    """Two metric targets and the allowed ratio of prefill to decode replicas."""

    metrics: Hpa
    min_ratio: float
    max_ratio: float

    def __call__(self, seen: Observed, now: datetime) -> Decision:
        """Recommend each role, stabilise, then force the pair into the ratio."""
        if (first := start(seen)) is not None:
            return first
        if not seen.history:
            return hold(seen, "NoMetrics", "no window yet")
        asked = [self.step(seen, now, role) for role in (Role.PREFILL, Role.DECODE)]
        limits = [bounds(seen.limits, role) for role in (Role.PREFILL, Role.DECODE)]
        prefill, decode = enforce_ratio(asked[0], asked[1], self.min_ratio, self.max_ratio, limits[0], limits[1])
        return go(seen, prefill, decode, f"kthena: {words(seen.history[-1])}, asked {asked[0]}:{asked[1]}")

    def step(self, seen: Observed, now: datetime, role: Role) -> int:
        """At most double, and by 1 at any rate; down is not limited (100 %)."""
        current = desired(seen, role)
        count = self.metrics.scale(seen, now, role)
        return min(count, current + max(1, current))
