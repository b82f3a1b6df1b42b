"""Weighs targets for one load and one model; each crew is forecast once, however many targets it is part of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import sub
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tandem_operator.plan.candidates import change_between, cost_of, gpus_of
from tandem_operator.plan.facts import Role
from tandem_operator.plan.predict import (
    Batch,
    Side,
    batch_of,
    first_side,
    first_within,
    prompt_cost,
    queue_of,
    slower,
    step_cost,
    steps_side,
    steps_within,
    together,
    utilisation_of,
)
from tandem_operator.plan.queueing import length_atoms
from tandem_operator.plan.roofline import prior_of
from tandem_operator.plan.scenarios import certain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tandem_operator.plan.facts import Limits, ModelShape, Slo, Target
    from tandem_operator.plan.predict import Forecast, Load, Model, PromptQueue
    from tandem_operator.plan.roofline import Prior
    from tandem_operator.plan.scenarios import Demand

Cost = TypeVar("Cost")
Counts = tuple[int, ...]  # workers by pool, in the order of `limits.pools`


@dataclass(frozen=True, slots=True)
class Option:
    """One legal target, what it would give, and what it takes."""

    target: Target
    forecast: Forecast
    sure: float  # attainment less its uncertainty (every cost one standard deviation higher)
    cost: float
    gpus: int
    change: int


class Score(NamedTuple):
    """One role's crew: share of its capacity in use, P(within target) by the model and one deviation worse."""

    utilisation: float
    kind: float
    stern: float


class Rating(NamedTuple):
    """A whole plan in three numbers: attainment, attainment less its uncertainty, utilisation of the fuller side."""

    kind: float
    sure: float
    overload: float


NO_LOAD = Score(0.0, 1.0, 1.0)
IDLE = Side(0.0, 0.0, 1.0)


class Desk:
    """Answers for one question: these limits, this load, this model, these targets.

    TTFT depends on the prefill crew alone and TPOT on the decode crew alone, so that a grid of plans needs only as
    many forecasts as there are crews.
    """

    def __init__(
        self,
        limits: Limits,
        shape: ModelShape,
        load: Load,
        model: Model,
        slo: Slo,
        demands: Sequence[Demand] = (),
        kept: Target | None = None,
    ) -> None:
        """Price one prompt and one step on each pool's workers; nothing is weighed yet.

        `demands`: what plans are held against, each by itself, where it is not this load alone. `kept`: a role that
        keeps all its workers of this plan needs no proof.
        """
        self.limits = limits
        self._load, self._model, self._slo = load, model, slo
        pools = limits.pools
        priors = [prior_of(p.device, p.gpus, shape) for p in pools]
        own = [i for i, p in enumerate(pools) if p.role is Role.PREFILL]
        other = [i for i, p in enumerate(pools) if p.role is Role.DECODE]
        self._order = (*own, *reversed(other))  # who prefills first: own role first, then the last pools
        self._models = [(model.of(p.name), prior) for p, prior in zip(pools, priors, strict=True)]
        demands = demands or (certain(load),)
        self._prompts = [[(share, Prompts(self._models, one)) for share, one in d.prefill] for d in demands]
        self._steps = [[(share, Steps(self._models, one)) for share, one in d.decode] for d in demands]
        self._rates = [prompt_cost(m, prior, load) for m, prior in self._models]
        self._first: dict[Counts, Score] = {}
        self._then: dict[Counts, Score] = {}
        self._sides: dict[tuple[Role, Counts], Side] = {}
        self._kept = (None, None) if kept is None else self.split(self._counts(kept), kept.prefill)

    def split(self, counts: Counts, prefill: int) -> tuple[Counts, Counts]:
        """(prefill, decode) workers by pool: own role first; what a role lacks is flipped, last pools first."""
        first = [0] * len(counts)
        left = prefill
        for i in self._order:
            first[i] = take = min(counts[i], left)
            left -= take
        return tuple(first), tuple(map(sub, counts, first))

    def prefill(self, crew: Counts) -> Score:
        """The prefill side of these workers."""
        if (score := self._first.get(crew)) is None:
            score = self._first[crew] = self._score_prompts(crew) if is_smaller(crew, self._kept[0]) else NO_LOAD
        return score

    def decode(self, crew: Counts) -> Score:
        """The decode side of these workers."""
        if (score := self._then.get(crew)) is None:
            score = self._then[crew] = self._score_steps(crew) if is_smaller(crew, self._kept[1]) else NO_LOAD
        return score

    def rate(self, counts: Counts, prefill: int) -> Rating:
        """A whole plan; a saturated decode side holds tickets back, and no prompt is in time."""
        first, then = self.split(counts, prefill)
        a, b = self.prefill(first), self.decode(then)
        kind = a.kind * b.kind
        return Rating(kind, min(kind, a.stern * b.stern), max(a.utilisation, b.utilisation))

    def rate_of(self, target: Target) -> Rating:
        """A target's rating."""
        return self.rate(self._counts(target), target.prefill)

    def weigh(self, target: Target, now: Target) -> Option:
        """The option of going from the target `now` to `target`, with its latencies."""
        pools, rating = target.pools, self.rate_of(target)
        first, then = self.split(self._counts(target), target.prefill)
        forecast = together(self._side(Role.PREFILL, first), self._side(Role.DECODE, then), self._drain_s(first))
        cost, gpus = cost_of(self.limits, pools), gpus_of(self.limits, pools)
        return Option(target, forecast, rating.sure, cost, gpus, change_between(self.limits, now, target))

    def _counts(self, target: Target) -> Counts:
        return tuple(target.pools.get(p.name, 0) for p in self.limits.pools)

    def _score_prompts(self, crew: Counts) -> Score:
        seconds = self._slo.ttft_ms / 1000 / self._model.ttft_factor
        return worst(mixed([(share, one.score(crew, seconds)) for share, one in demand]) for demand in self._prompts)

    def _score_steps(self, crew: Counts) -> Score:
        seconds = self._slo.tpot_ms / 1000 / self._model.tpot_factor
        return worst(mixed([(share, one.score(crew, seconds)) for share, one in demand]) for demand in self._steps)

    def _side(self, role: Role, crew: Counts) -> Side:
        if (side := self._sides.get((role, crew))) is None:
            side = self._sides[role, crew] = self._forecast(role, crew)
        return side

    def _forecast(self, role: Role, crew: Counts) -> Side:
        """The side under the first demand."""
        if role is Role.PREFILL:
            queues = [(share, one.queue(crew), one.atoms) for share, one in self._prompts[0] if one.is_any]
            return first_side(queues, self._model.ttft_factor, self._slo) if queues else IDLE
        batches = [(share, one.batch(crew)) for share, one in self._steps[0] if one.is_any]
        return steps_side(batches, self._model.tpot_factor, self._slo) if batches else IDLE

    def _drain_s(self, crew: Counts) -> float | None:
        """Seconds until the waiting prompt tokens are computed while new ones keep arriving; None: never."""
        load = self._load
        if load.waiting_tokens <= 0:
            return 0.0
        spare = sum(n / cost.seconds for n, cost in zip(crew, self._rates, strict=True)) - load.arrival_rate
        return None if spare <= 0 else load.waiting_tokens / max(load.computed_tokens, 1.0) / spare


def members(crew: Counts, costs: Sequence[Cost]) -> list[tuple[int, Cost]]:
    """(workers, cost) of every pool that lends some."""
    return [(n, cost) for n, cost in zip(crew, costs, strict=True) if n]


class Prompts:
    """Prefill crews under one load."""

    def __init__(self, models: Sequence[tuple[Model, Prior]], load: Load) -> None:
        """Price a prompt on each pool's workers, as the model says and one standard deviation dearer."""
        self._load, self.atoms = load, length_atoms(load.prompt_cv2)
        self.is_any = load.arrival_rate > 0
        self._kind = [prompt_cost(m, prior, load) for m, prior in models]
        self._stern = [prompt_cost(worse(m), prior, load) for m, prior in models]

    def queue(self, crew: Counts) -> PromptQueue | float:
        """Prompts in front of these workers."""
        return queue_of(members(crew, self._kind), self._load)

    def score(self, crew: Counts, seconds: float) -> Score:
        """How many are in time."""
        if not self.is_any:
            return NO_LOAD
        kind, stern = self.queue(crew), queue_of(members(crew, self._stern), self._load)
        return Score(
            utilisation_of(kind), first_within(kind, self.atoms, seconds), first_within(stern, self.atoms, seconds)
        )


class Steps:
    """Decode crews under one load."""

    def __init__(self, models: Sequence[tuple[Model, Prior]], load: Load) -> None:
        """Price a step on each pool's workers; its doubt is asked for where a batch runs."""
        self._load, self._models = load, models
        self.is_any = load.arrival_rate * (load.output_tokens - 1) > 0
        self._kind = [step_cost(m, prior, load) for m, prior in models]

    def batch(self, crew: Counts) -> Batch | float:
        """Requests that these workers run side by side."""
        return batch_of(members(crew, self._kind), self._load)

    def score(self, crew: Counts, seconds: float) -> Score:
        """How many are in time."""
        if not self.is_any:
            return NO_LOAD
        kind = self.batch(crew)
        if not isinstance(kind, Batch):
            return Score(kind, 0.0, 0.0)
        costs = zip(crew, self._kind, self._models, strict=True)
        slow = [(n, slower(cost, m, prior, kind.others, self._load)) for n, cost, (m, prior) in costs if n]
        stern = batch_of(slow, self._load)
        return Score(kind.utilisation, steps_within(kind, seconds), steps_within(stern, seconds))


def worse(model: Model) -> Model:
    """Every cost one standard deviation higher."""
    return replace(model, pessimism=model.pessimism + 1.0)


def mixed(scores: Sequence[tuple[float, Score]]) -> Score:
    """The mean over loads, by their shares of the requests."""
    if len(scores) == 1:
        return scores[0][1]
    return Score(*(sum(share * score[i] for share, score in scores) for i in range(3)))


def worst(scores: Iterable[Score]) -> Score:
    """Each figure at its worst."""
    utilisation, kind, stern = zip(*scores, strict=True)
    return Score(max(utilisation), min(kind), min(stern))


def is_smaller(crew: Counts, kept: Counts | None) -> bool:
    """Does the crew lack a worker that the kept one has?"""
    return kept is None or any(n < m for n, m in zip(crew, kept, strict=True))
