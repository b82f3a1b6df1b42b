"""Users in a closed loop on prefill and decode workers of their own: TTFT and TPOT in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from tandem_operator.plan.performance.closed_loop import Latency, prompt_pass_s
from tandem_operator.plan.performance.passes import Batch, pass_time

if TYPE_CHECKING:
    from tandem_operator.plan.performance.costs import Costs
    from tandem_operator.plan.performance.engine import Engine

HALVINGS = 50
HANDOVER_S = (
    0.1  # router, bootstrap and completion between the roles, once a request: docs/reference/planner/accuracy.md
)


@dataclass(frozen=True, slots=True)
class Side:
    """One role's workers: unit costs of each, how many there are, and requests that one can hold."""

    costs: Costs
    workers: int
    room: float  # requests

    @property
    def ranks(self) -> int:
        """Attention ranks of all workers: each serves its own requests."""
        return self.workers * self.costs.data


@dataclass(frozen=True, slots=True)
class Closed:
    """The load: `users` of whom each asks again at once, `rounds` times."""

    users: int
    rounds: float
    prompt: float
    output: float
    transfer_s: float


def latency(prefill: Side, decode: Side, engine: Engine, load: Closed) -> Latency:
    """TTFT and TPOT where throughput closes the loop: users = X·(prefill residence + transfer + decode residence).

    The bottleneck law of closed queueing networks (Lazowska et al., Quantitative System Performance, 1984, ch. 5):
    X is at most each side's capacity; who is not in decode waits for prefill. The first round begins all at once and
    waits half of what all its prompts take.
    """
    service = prompts_s(prefill.costs, engine, load.prompt, 1)
    each = crowded_s(prefill.costs, engine, load.prompt)
    batch = decode_batch(prefill.ranks / each, service + load.transfer_s, decode, engine, load)
    step = step_s(decode.costs, engine, load, batch)
    rate = batch * decode.ranks / (load.output * step)
    waiting = max(load.users / rate - load.output * step - service - load.transfer_s, 0.0)
    burst = load.users / prefill.ranks * each / 2
    ttft = service + load.transfer_s + engine.request_s + HANDOVER_S + waiting + max(burst - waiting, 0.0) / load.rounds
    return Latency(ttft, step)


def matching(prefill: Side, decode: Side, engine: Engine, load: Closed) -> int:
    """Prefill workers that keep up with decode workers which hold all users."""
    batch = min(load.users / decode.ranks, decode.room)
    rate = batch * decode.ranks / (load.output * step_s(decode.costs, engine, load, batch))
    return max(ceil(rate * crowded_s(prefill.costs, engine, load.prompt) / prefill.costs.data), 1)


def decode_batch(capacity: float, before_s: float, decode: Side, engine: Engine, load: Closed) -> float:
    """Requests that decode on one rank: the most that prefill's `capacity` (requests/s) and the users can feed."""
    low, high = 0.0, min(load.users / decode.ranks, decode.room)
    for _ in range(HALVINGS):
        batch = (low + high) / 2
        rate = batch * decode.ranks / (load.output * step_s(decode.costs, engine, load, batch))
        fed = rate <= capacity and rate * before_s + batch * decode.ranks <= load.users
        low, high = (batch, high) if fed else (low, batch)
    return max(low, 1e-6)


def prompts_s(costs: Costs, engine: Engine, prompt: float, count: int) -> float:
    """One pass with so many prompts on each rank."""
    batch = Batch(prompt_tokens=count * prompt, pairs=count * prompt * prompt / 2, finished_prompts=count)
    return prompt_pass_s(costs, engine, batch) + engine.step_s + count * engine.row_s


def crowded_s(costs: Costs, engine: Engine, prompt: float) -> float:
    """Seconds a prompt where a queue fills each pass to the engine's budget."""
    count = max(int(engine.chunk_tokens // prompt), 1)
    return prompts_s(costs, engine, prompt, count) / count


def step_s(costs: Costs, engine: Engine, load: Closed, batch: float) -> float:
    """One decode step of a rank with that many requests (at least the one that is asked about)."""
    size = max(batch, 1.0)
    context = load.prompt + load.output / 2
    return pass_time(costs, Batch(decoding=size, context=context)).total + engine.step_s + size * engine.row_s
