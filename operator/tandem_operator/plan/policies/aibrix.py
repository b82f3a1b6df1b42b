"""AIBrix's pod autoscaler (APA): metric over target with two tolerances and a cap on the rate of change.

Source: vllm-project/aibrix pkg/controller/podautoscaler/algorithm/apa.go; defaults from context/context.go (tolerance
0.1 each way, at most twice or half a step, no cooldown up, 300 s down).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor
from typing import TYPE_CHECKING

from tandem_operator.plan.facts import Role
from tandem_operator.plan.policies.base import bounds, desired, go, hold, start
from tandem_operator.plan.policies.hpa import signal, words
from tandem_operator.plan.policies.signals import within, workers

if TYPE_CHECKING:
    from datetime import datetime

    from tandem_operator.plan.facts import Decision, Observed

TOLERANCE = 0.1
MOST_UP = 2.0
MOST_DOWN = 2.0
DOWN_COOLDOWN_S = 300


def recommend(current: int, value: float, target: float) -> int:
    """R = value/target: above 1.1 ceil(current·r), at most twice; below 0.9 the same, at least half; else current."""
    ratio = value / target
    if ratio > 1 + TOLERANCE:
        return min(ceil(current * ratio - 1e-9), ceil(MOST_UP * current))
    if ratio < 1 - TOLERANCE:
        return max(ceil(current * ratio - 1e-9), floor(current / MOST_DOWN))
    return current


@dataclass(frozen=True, slots=True)
class Aibrix:
    """The same two metrics and targets as the HPA's. A metric that nobody reports leaves the count."""

    utilisation_target: float
    running_target: float

    def __call__(self, seen: Observed, now: datetime) -> Decision:
        """Each role by itself."""
        if (first := start(seen)) is not None:
            return first
        if not seen.history:
            return hold(seen, "NoMetrics", "no window yet")
        prefill, decode = (self.scale(seen, now, role) for role in (Role.PREFILL, Role.DECODE))
        return go(seen, prefill, decode, f"AIBrix: {words(seen.history[-1])}")

    def scale(self, seen: Observed, now: datetime, role: Role) -> int:
        """Up at once; down to the highest recommendation of the cooldown."""
        current, target = desired(seen, role), self.target(role)
        value = signal(seen.history[-1], role)
        if value is None:
            return current
        low, high = bounds(seen.limits, role)
        count = recommend(current, value, target)
        if count < current:
            recent = [(workers(w, role), signal(w, role)) for w in within(seen.history, now, DOWN_COOLDOWN_S)]
            past = [recommend(n, v, target) for n, v in recent if n and v is not None]
            count = min(max([count, *past]), current)
        return min(max(count, low), high)

    def target(self, role: Role) -> float:
        """The role's target of one pod."""
        return self.utilisation_target if role is Role.PREFILL else self.running_target
