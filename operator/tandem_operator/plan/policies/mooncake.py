"""Mooncake's early rejection: a request that would miss its targets is refused before its prefill is wasted.

Source: "Mooncake: A KVCache-centric Disaggregated Architecture for LLM Serving" (arXiv 2407.00079, sections 6 and 7):
a request is accepted only if the predicted TTFT of the chosen prefill instance and the decode load predicted for the
end of its prefill are within the targets. An admission rule, not a planner: counts stay with whoever plans.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tandem_operator.plan.facts import Slo
    from tandem_operator.plan.policies.profile import Profile


@dataclass(frozen=True, slots=True)
class EarlyRejection:
    """Both predictions from a Profile."""

    profile: Profile
    slo: Slo

    def admits(self, prompt: int, waiting_tokens: float, running: float, context: float) -> bool:
        """May this prompt enter?

        `waiting_tokens`: tokens before it on its prefill worker. `running`: requests that its decode worker will run
        by then, without it, of this mean `context`.
        """
        ttft_s = waiting_tokens * self.profile.prompt_token_s + self.profile.prompt_s(prompt)
        fits = running + 1 <= self.profile.room(context)
        return ttft_s * 1000 <= self.slo.ttft_ms and fits and self.step_ms(running + 1, context) <= self.slo.tpot_ms

    def step_ms(self, batch: float, context: float) -> float:
        """The decode step with it, in ms."""
        return self.profile.step_s(batch, context) * 1000
