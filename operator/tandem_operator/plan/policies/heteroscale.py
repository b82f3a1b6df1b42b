"""HeteroScale: decode tokens/s is the one signal, both roles scale together at a fixed ratio, latency only adds.

Source: "Taming the Chaos: Coordinated Autoscaling for Heterogeneous and Disaggregated LLM Inference" (ByteDance,
arXiv 2508.19559, 2025), metrics-driven policy: proportional control on decode tokens/s per instance with thresholds for
scaling out and in; negative feedback on TTFT and TBT that only scales out, by a share. The service's target and ratio
come from its own stress test, here from a Profile at the mean lengths.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from tandem_operator.plan.facts import Role
from tandem_operator.plan.policies.base import desired, go, hold, start
from tandem_operator.plan.policies.signals import within

if TYPE_CHECKING:
    from datetime import datetime

    from tandem_operator.plan.facts import Decision, Observed

# The paper gives no numbers for these; chosen once for all traces.
OUT, IN = 0.1, 0.1  # tolerance around the target
FEEDBACK = 0.2  # share added while a latency is above its target
IN_COOLDOWN_S = 300


@dataclass(frozen=True, slots=True)
class HeteroScale:
    """`tokens_rate`: decode tokens/s that one decode worker should do. `ratio`: prefill workers for each of decode."""

    tokens_rate: float
    ratio: float

    def __call__(self, seen: Observed, now: datetime) -> Decision:
        """Proportional on the signal; unknown holds."""
        if (first := start(seen)) is not None:
            return first
        current = desired(seen, Role.DECODE)
        rate = seen.history[-1].decode.tokens_rate if seen.history else None
        if rate is None:
            return hold(seen, "NoMetrics", "decode tokens/s are not known")
        decode = self.decode_workers(seen, now, rate, current)
        return go(seen, ceil(decode * self.ratio - 1e-9), decode, f"{rate:.0f} decode tokens/s ask {decode} workers")

    def decode_workers(self, seen: Observed, now: datetime, rate: float, current: int) -> int:
        """ceil(rate/target) outside the tolerance; more while a latency is too high; less only after the cooldown."""
        newest, slo = seen.history[-1], seen.limits.slo
        slow = [ms for ms, most in ((newest.ttft_ms, slo.ttft_ms), (newest.tpot_ms, slo.tpot_ms)) if ms and ms > most]
        wish = self.proportional(rate, current)
        if slow:
            wish = max(wish, current, *([ceil(current * (1 + FEEDBACK))] if not self.is_starting(seen) else []))
        if wish >= current:
            return wish
        rates = [w.decode.tokens_rate for w in within(seen.history, now, IN_COOLDOWN_S)]
        return min(max(self.proportional(r, current) for r in rates if r is not None), current)

    def proportional(self, rate: float, current: int) -> int:
        """Workers for this rate; the present count inside the tolerance."""
        load = rate / current / self.tokens_rate
        return current if 1 - IN <= load <= 1 + OUT else max(ceil(rate / self.tokens_rate - 1e-9), 1)

    def is_starting(self, seen: Observed) -> bool:
        """Are workers under way? Then latency says nothing of the plan, and must not add again."""
        return any(not w.ready for w in seen.workers)
