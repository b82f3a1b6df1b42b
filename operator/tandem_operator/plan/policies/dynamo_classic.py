"""NVIDIA Dynamo's SLA planner as first published: profiled throughput, corrected by what is observed, every 180 s.

Source: ai-dynamo/dynamo docs "SLA-based planner" and components/planner (planner_core), releases 0.4-0.8:
num_p = ceil(req·isl/interval · min(1, p_corr) / prefill_throughput_per_gpu(isl) / gpus),
num_d = ceil(req·osl/interval / decode_throughput_per_gpu(itl/d_corr, isl + osl/2) / gpus).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from tandem_operator.plan.facts import Role
from tandem_operator.plan.policies.base import go, gpus_per_replica, hold, start
from tandem_operator.plan.policies.budget import Budget
from tandem_operator.plan.policies.signals import (
    closed_interval,
    is_due,
    mean,
    mean_prompt_s,
    mean_step_s,
    running,
    traffic,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from tandem_operator.plan.facts import Decision, Limits, Observed, Window
    from tandem_operator.plan.policies.profile import Profile
    from tandem_operator.plan.policies.signals import Traffic

INTERVAL_S = 180  # adjustment_interval


@dataclass(frozen=True, slots=True)
class DynamoClassic:
    """The load of the next interval is that of the last one (its `constant` predictor)."""

    profile: Profile

    def __call__(self, seen: Observed, now: datetime) -> Decision:  # noqa: ARG002
        """Once an interval; a figure that is not known skips the tick, so an idle system never shrinks."""
        if (first := start(seen)) is not None:
            return first
        windows = closed_interval(seen.history, INTERVAL_S)
        if not is_due(seen.history, INTERVAL_S) or not windows:
            return hold(seen, "NotDue", f"adjusts every {INTERVAL_S} s")
        load = traffic(windows)
        corrections = self.corrections(windows, load) if load is not None else None
        if load is None or corrections is None:
            return hold(seen, "Skipped", "a metric is not a number: this adjustment is skipped")
        asked = self.replicas(load, seen.limits, *corrections)
        prefill, decode = budget_of(seen.limits).clamp(*asked)
        factors = f"corrections {corrections[0]:.2f} and {corrections[1]:.2f}"
        words = f"{load.rate:.2f} req/s, {factors}, asks {asked[0]}:{asked[1]}"
        return go(seen, prefill, decode, words)

    def corrections(self, windows: Sequence[Window], load: Traffic) -> tuple[float, float] | None:
        """Observed over profiled: (TTFT, ITL).

        TTFT's mean is not among our metrics; the mean service time of a prompt stands in. Waiting would only raise the
        factor, which is cut off at 1 anyway.
        """
        prompt, step = mean_prompt_s(windows), mean_step_s(windows)
        batch = mean([running(w) for w in windows])
        if prompt is None or step is None or batch is None:
            return None
        profiled = self.profile.prompt_s(load.prompt_tokens), self.profile.step_s(batch, load.context_tokens)
        return prompt / profiled[0], step / profiled[1]

    def replicas(self, load: Traffic, limits: Limits, p_corr: float, d_corr: float) -> tuple[int, int]:
        """The two formulas; at least one of each, and where no batch meets the ITL, what one at a time gives."""
        itl_s = limits.slo.tpot_ms / 1000 / max(d_corr, 1e-9)
        batch = max(self.profile.batch_within(itl_s, load.context_tokens), 1)
        prompt_rate = 1 / self.profile.prompt_s(load.prompt_tokens)
        token_rate = batch / self.profile.step_s(batch, load.context_tokens)
        prefill = ceil(load.rate * min(1.0, p_corr) / prompt_rate - 1e-9)
        decode = ceil(load.rate * load.output_tokens / token_rate - 1e-9)
        return max(prefill, 1), max(decode, 1)


def budget_of(limits: Limits) -> Budget:
    """The resource's GPU budget as Dynamo's max_gpu_budget."""
    gpus = gpus_per_replica(limits, Role.PREFILL), gpus_per_replica(limits, Role.DECODE)
    return Budget(*gpus, most=limits.budget_gpus)
