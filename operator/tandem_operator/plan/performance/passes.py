"""One forward pass of a worker: what it works on, and its seconds by part."""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt
from typing import TYPE_CHECKING, Protocol

from tandem_operator.plan.performance.weights import Routed, experts_touched

if TYPE_CHECKING:
    from tandem_operator.plan.performance.costs import Costs, ExpertCosts


class Ranked(Routed, Protocol):
    """Routed experts spread over ranks."""

    @property
    def ranks(self) -> int:
        """Expert-parallel ranks."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one pass works on, per attention data-parallel rank; all ranks are alike.

    `pairs`: (query, key) pairs of the prompt tokens' attention; `context`: mean tokens that a decoding request reads.
    """

    prompt_tokens: float = 0.0
    pairs: float = 0.0
    decoding: float = 0.0
    context: float = 0.0
    finished_prompts: float = 0.0  # prompts whose last token is in the pass: they need logits, too


@dataclass(frozen=True, slots=True)
class PassTime:
    """Seconds of one pass by part; they add up, since a layer's kernels run one after another."""

    linear: float
    experts: float
    attention: float
    communication: float
    floor: float

    @property
    def total(self) -> float:
        """Seconds of the pass."""
        return self.linear + self.experts + self.attention + self.communication + self.floor


def pass_time(costs: Costs, batch: Batch) -> PassTime:
    """Seconds of one forward pass through all layers of one worker."""
    tokens = batch.prompt_tokens + batch.decoding
    return PassTime(
        costs.linear.seconds(tokens) + costs.head.seconds(batch.decoding + batch.finished_prompts),
        experts_s(costs.experts, tokens * costs.data) if costs.experts and tokens else 0.0,
        prompt_attention_s(costs, batch) + batch.decoding * decode_attention_s(costs, batch.context),
        costs.latency_s + tokens * costs.message_s,
        costs.floor_s + tokens * costs.activation_s,
    )


def experts_s(costs: ExpertCosts, tokens: float) -> float:
    """Routed experts of `tokens` (of all ranks): the distinct ones are read, the fullest rank is waited for.

    Distinct experts by uniform routing: E·(1 - (1 - k/E)^n). 8 of 256, 32 tokens: 163.3.
    """
    return max(costs.token_s * tokens * imbalance(costs, tokens), costs.read_s * experts_touched(costs, tokens))


def imbalance(costs: Ranked, tokens: float) -> float:
    """How much fuller than the mean the fullest expert-parallel rank is, for uniform routing.

    Balls in bins with mean m a rank: maximum about m + √(2·m·ln ranks) (Raab and Steger, RANDOM '98, theorem 1).
    """
    if costs.ranks <= 1:
        return 1.0
    mean = costs.chosen * tokens / costs.ranks
    return min(1 + sqrt(2 * log(costs.ranks) / mean), float(costs.ranks))


def prompt_attention_s(costs: Costs, batch: Batch) -> float:
    """Attention of the prompt's tokens; in window layers a token pairs with at most the window."""
    inside = min(batch.pairs, batch.prompt_tokens * costs.window)
    return batch.pairs * costs.pair_s + inside * costs.window_pair_s


def decode_attention_s(costs: Costs, context: float) -> float:
    """One decoding request: reading its KV, the windowed and sparse layers' only so far back, and its state."""
    seen = min(context, costs.attended) if costs.attended else context
    return seen * costs.context_s + min(context, costs.window) * costs.window_s + costs.state_s
