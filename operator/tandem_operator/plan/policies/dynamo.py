"""NVIDIA Dynamo's planner as it is now: a throughput loop sets floors, a load loop moves by one.

Source: ai-dynamo/dynamo components/src/dynamo/planner/core/{throughput_scaling,load_scaling,budget}.py (2026).
Its per-engine regressions are given here as exact (a Profile); its engines' queues are the role's mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from tandem_operator.plan.facts import Role
from tandem_operator.plan.policies.base import desired, go, hold, is_moving, ready, start
from tandem_operator.plan.policies.dynamo_classic import INTERVAL_S, budget_of
from tandem_operator.plan.policies.signals import closed_interval, running, traffic, within

if TYPE_CHECKING:
    from datetime import datetime

    from tandem_operator.plan.facts import Decision, Observed, Slo
    from tandem_operator.plan.policies.profile import Profile
    from tandem_operator.plan.policies.signals import Traffic

SENSITIVITY = 0.8  # load_scaling_down_sensitivity


@dataclass(frozen=True, slots=True)
class Dynamo:
    """Throughput floors from the last interval's demand (`constant` predictor), ±1 a tick by estimated latencies."""

    profile: Profile

    def __call__(self, seen: Observed, now: datetime) -> Decision:
        """Hold while a scaling action is under way or nothing is known; else floors, the load's ±1, the budget."""
        if (first := start(seen)) is not None:
            return first
        if is_moving(seen) or any(ready(seen, role) != desired(seen, role) for role in (Role.PREFILL, Role.DECODE)):
            return hold(seen, "ScalingInProgress", "observing only")
        load = traffic(within(seen.history, now, INTERVAL_S))
        if load is None:
            return hold(seen, "NoMetrics", "no traffic was observed")
        current = desired(seen, Role.PREFILL), desired(seen, Role.DECODE)
        asked = self.prefill_step(seen, load, current[0]), self.decode_step(seen, load, current[1])
        floors = self.floors(seen)
        raised = max(asked[0], floors[0]), max(asked[1], floors[1])
        prefill, decode = budget_of(seen.limits).fit(current, raised)
        return go(seen, prefill, decode, f"load asks {asked[0]}:{asked[1]}, throughput floors {floors[0]}:{floors[1]}")

    def floors(self, seen: Observed) -> tuple[int, int]:
        """The throughput loop's counts for the last closed interval; (1, 1) before there is one."""
        load = traffic(closed_interval(seen.history, INTERVAL_S))
        return (1, 1) if load is None else throughput_counts(self.profile, load, seen.limits.slo)

    def prefill_step(self, seen: Observed, load: Traffic, current: int) -> int:
        """+1 if the estimated TTFT exceeds the target; -1 if what waits keeps 80 % of the room on one worker fewer.

        TTFT of the next request = time of the queued tokens and its own; only the queue grows by N/(N-1).
        """
        waiting = seen.history[-1].prefill.waiting_tokens
        if waiting is None:
            return current
        target, own = seen.limits.slo.ttft_ms / 1000, self.profile.prompt_s(load.prompt_tokens * load.computed_share)
        queue = waiting / current * self.profile.prompt_token_s
        if queue + own > target:
            return current + 1
        is_safe = current > 1 and queue * current / (current - 1) < (target - own) * SENSITIVITY
        return current - 1 if is_safe else current

    def decode_step(self, seen: Observed, load: Traffic, current: int) -> int:
        """+1 if the estimated ITL exceeds the target; -1 if it keeps 80 % of it, and the memory, on one fewer."""
        batch = running(seen.history[-1])
        if batch is None:
            return current
        target, context = seen.limits.slo.tpot_ms / 1000, load.context_tokens
        if self.profile.step_s(batch, context) > target:
            return current + 1
        if current <= 1:
            return current
        heavier = batch * current / (current - 1)
        is_safe = heavier < self.profile.room(context) and self.profile.step_s(heavier, context) < target * SENSITIVITY
        return current - 1 if is_safe else current


def throughput_counts(profile: Profile, load: Traffic, slo: Slo) -> tuple[int, int]:
    """ceil(demand·prompt time) and ceil(demand/(B/(osl·step))), B the largest batch within the ITL and the memory.

    Where one prompt alone takes longer than the TTFT target, at least ceil(TTFT/target) prefill workers.
    """
    own = profile.prompt_s(load.prompt_tokens * load.computed_share)
    prefill = max(ceil(load.rate * own - 1e-9), ceil(own * 1000 / slo.ttft_ms - 1e-9), 1)
    batch = max(profile.batch_within(slo.tpot_ms / 1000, load.context_tokens), 1)
    step = profile.step_s(batch, load.context_tokens)
    return prefill, max(ceil(load.rate * load.output_tokens * step / batch - 1e-9), 1)
