"""What a pass of a sparse model touches only in part: routed experts, windows, sparse attention, recurrent state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tandem_operator.plan.performance.passes import imbalance
from tandem_operator.plan.performance.weights import experts_touched

if TYPE_CHECKING:
    from tandem_operator.plan.performance.costs import Costs

# Seconds of reading weights, of computing and of attention, to be added to the dense parts.
Extra = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Sparse:
    """Costs in seconds over all layers of one worker, beside `Prior`'s; sizes in tokens, 0 where there is no such part.

    The formulas are performance.passes'; reading and computing experts are added as all parts of a prior are.
    """

    total: int = 0  # routed experts of a layer
    chosen: int = 0
    ranks: int = 1
    expert_token_s: float = 0.0  # a token's share of its experts' products
    expert_read_s: float = 0.0  # reading one distinct expert in every layer
    window: int = 0
    attended: int = 0
    window_pair_s: float = 0.0
    window_token_s: float = 0.0
    state_s: float = 0.0

    def reading_s(self, tokens: float) -> float:
        """Reading the experts that a pass of so many tokens touches."""
        return self.expert_read_s * experts_touched(self, tokens) if self.total else 0.0

    def computing_s(self, tokens: float) -> float:
        """The experts' products, on the fullest rank."""
        return self.expert_token_s * tokens * imbalance(self, tokens) if self.total and tokens else 0.0

    def prompt(self, tokens: float) -> Extra:
        """What a prompt adds: a token of a window layer pairs with at most its window."""
        pairs = min(tokens**2 / 2, tokens * self.window)
        return self.reading_s(tokens), self.computing_s(tokens), pairs * self.window_pair_s

    def step(self, batch: float, context: float) -> Extra:
        """What a decode step adds: its batch's experts, its windows, its state."""
        attention = batch * (min(context, self.window) * self.window_token_s + self.state_s)
        return self.reading_s(batch), self.computing_s(batch), attention

    def seen(self, context: float) -> float:
        """Tokens that the full layers of a decode step read: sparse attention stops at `attended`."""
        return min(context, self.attended) if self.attended else context


def sparse_of(costs: Costs, lanes: int = 1, stages: int = 1) -> Sparse | None:
    """The sparse part of a deployment's unit costs; None for a plain dense decoder.

    `lanes` work at once on attention, `stages` of them on other layers; the experts count the tokens of all ranks.
    """
    experts = costs.experts
    if not (experts or costs.window or costs.attended or costs.state_s):
        return None
    return Sparse(
        experts.total if experts else 0,
        experts.chosen if experts else 0,
        experts.ranks if experts else 1,
        experts.token_s / stages if experts else 0.0,
        experts.read_s if experts else 0.0,
        costs.window,
        costs.attended,
        costs.window_pair_s / lanes,
        costs.window_s / lanes,
        costs.state_s / lanes,
    )
