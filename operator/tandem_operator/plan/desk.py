"""Weighs targets for one load and one model; each crew is forecast once, however many targets it is part of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from operator import lt, sub
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
    from collections.abc import Sequence

    from tandem_operator.plan.facts import Limits, ModelShape, Slo, Target
    from tandem_operator.plan.predict import Forecast, Load, Model, PromptQueue
    from tandem_operator.plan.roofline import Prior
    from tandem_operator.plan.scenarios import Demand

    Parted = Sequence[tuple[float, "Prompts | Steps"]]  # a demand: loads, each with its share of the requests

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


class Score:
    """One role's crew: share of its capacity in use, P(within target) by the model and one deviation worse.

    Each at its worst over the demands, and computed when it is first asked for: most crews fall short of a bar by
    their first figure, and nobody asks for the others.
    """

    __slots__ = ("_crew", "_demands", "_kinds", "_seconds", "_sterns")

    def __init__(self, demands: Sequence[Parted], crew: Counts, seconds: float) -> None:
        """Nothing is weighed yet."""
        self._demands, self._crew, self._seconds = demands, crew, seconds
        self._sterns: list[float] = []
        self._kinds: tuple[float, float] | None = None

    @property
    def utilisation(self) -> float:
        """Of the fuller demand."""
        return self._by_model()[0]

    @property
    def kind(self) -> float:
        """By the model."""
        return self._by_model()[1]

    @property
    def stern(self) -> float:
        """If every cost is one standard deviation higher."""
        self.is_sure(-inf)
        return min(self._sterns, default=1.0)

    def is_sure(self, least: float) -> bool:
        """Is `stern` at least this? The demands are asked one by one, until one of them is below."""
        known = self._sterns
        while len(known) < len(self._demands) and (not known or min(known) >= least):
            parts = [share * one.stern(self._crew, self._seconds) for share, one in self._demands[len(known)]]
            known.append(sum(parts))
        return not known or min(known) >= least

    def _by_model(self) -> tuple[float, float]:
        if self._kinds is None:
            found = [mixed([(share, one.kind(self._crew, self._seconds)) for share, one in d]) for d in self._demands]
            self._kinds = max([used for used, _ in found], default=0.0), min([share for _, share in found], default=1.0)
        return self._kinds


class Rating(NamedTuple):
    """A whole plan in three numbers: attainment, attainment less its uncertainty, utilisation of the fuller side."""

    kind: float
    sure: float
    overload: float


NO_LOAD = Score((), (), 0.0)
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
        self._ttft_s, self._tpot_s = slo.ttft_ms / 1000 / model.ttft_factor, slo.tpot_ms / 1000 / model.tpot_factor
        pools = limits.pools
        priors = [prior_of(p.device, p.gpus, shape, p.spread) for p in pools]
        own = [i for i, p in enumerate(pools) if p.role is Role.PREFILL]
        other = [i for i, p in enumerate(pools) if p.role is Role.DECODE]
        self._order = (*own, *reversed(other))  # who prefills first: own role first, then the last pools
        models = [(model.of(p.name), prior) for p, prior in zip(pools, priors, strict=True)]
        stern = [(worse(m), prior) for m, prior in models]
        demands = demands or (certain(load),)
        self._prompts = [[(share, Prompts(models, stern, one)) for share, one in d.prefill] for d in demands]
        self._steps = [[(share, Steps(models, one)) for share, one in d.decode] for d in demands]
        self._rates = [prompt_cost(m, prior, load) for m, prior in models]
        self._first: dict[Counts, Score] = {}
        self._then: dict[Counts, Score] = {}
        self._sides: dict[tuple[Role, Counts], Side] = {}
        self._kept = (None, None) if kept is None else self.split(self._counts(kept), kept.prefill)

    def split(self, counts: Counts, prefill: int) -> tuple[Counts, Counts]:
        """(prefill, decode) workers by pool: own role first; what a role lacks is flipped, last pools first."""
        first = [0] * len(counts)
        left = prefill
        for i in self._order:
            if left <= counts[i]:
                first[i] = left
                break
            first[i] = counts[i]
            left -= counts[i]
        return tuple(first), tuple(map(sub, counts, first))

    def prefill(self, crew: Counts) -> Score:
        """The prefill side of these workers."""
        if (score := self._first.get(crew)) is None:
            is_new = is_smaller(crew, self._kept[0])
            score = self._first[crew] = Score(self._prompts, crew, self._ttft_s) if is_new else NO_LOAD
        return score

    def decode(self, crew: Counts) -> Score:
        """The decode side of these workers."""
        if (score := self._then.get(crew)) is None:
            is_new = is_smaller(crew, self._kept[1])
            score = self._then[crew] = Score(self._steps, crew, self._tpot_s) if is_new else NO_LOAD
        return score

    def sides(self, counts: Counts, prefill: int) -> tuple[Score, Score]:
        """Both sides of a whole plan."""
        first, then = self.split(counts, prefill)
        return self.prefill(first), self.decode(then)

    def rate(self, counts: Counts, prefill: int) -> Rating:
        """A whole plan; a saturated decode side holds tickets back, and no prompt is in time."""
        a, b = self.sides(counts, prefill)
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

    def __init__(self, models: Sequence[tuple[Model, Prior]], stern: Sequence[tuple[Model, Prior]], load: Load) -> None:
        """Price a prompt on each pool's workers, as the model says and one standard deviation dearer."""
        self._load, self.atoms = load, length_atoms(load.prompt_cv2)
        self.is_any = load.arrival_rate > 0
        self._kind = [prompt_cost(m, prior, load) for m, prior in models]
        self._stern = [prompt_cost(m, prior, load) for m, prior in stern]

    def queue(self, crew: Counts) -> PromptQueue | float:
        """Prompts in front of these workers."""
        return queue_of(members(crew, self._kind), self._load)

    def kind(self, crew: Counts, seconds: float) -> tuple[float, float]:
        """Share of the capacity in use, and how many are in time."""
        if not self.is_any:
            return 0.0, 1.0
        queue = self.queue(crew)
        return utilisation_of(queue), first_within(queue, self.atoms, seconds)

    def stern(self, crew: Counts, seconds: float) -> float:
        """How many are in time if a prompt is one standard deviation dearer."""
        if not self.is_any:
            return 1.0
        return first_within(queue_of(members(crew, self._stern), self._load), self.atoms, seconds)


class Steps:
    """Decode crews under one load."""

    def __init__(self, models: Sequence[tuple[Model, Prior]], load: Load) -> None:
        """Price a step on each pool's workers; its doubt is asked for where a batch runs."""
        self._load, self._models = load, models
        self.is_any = load.arrival_rate * (load.output_tokens - 1) > 0
        self._kind = [step_cost(m, prior, load) for m, prior in models]
        self._batches: dict[Counts, Batch | float] = {}  # asked for by the model, one deviation worse, and for words

    def batch(self, crew: Counts) -> Batch | float:
        """Requests that these workers run side by side."""
        if (found := self._batches.get(crew)) is None:
            found = self._batches[crew] = batch_of(members(crew, self._kind), self._load)
        return found

    def kind(self, crew: Counts, seconds: float) -> tuple[float, float]:
        """Share of the capacity in use, and how many are in time."""
        if not self.is_any:
            return 0.0, 1.0
        batch = self.batch(crew)
        return utilisation_of(batch), steps_within(batch, seconds)

    def stern(self, crew: Counts, seconds: float) -> float:
        """How many are in time if a step is dearer by one standard deviation of a step of this batch."""
        if not self.is_any:
            return 1.0
        batch = self.batch(crew)
        if not isinstance(batch, Batch):
            return 0.0
        costs = zip(crew, self._kind, self._models, strict=True)
        slow = [(n, slower(cost, m, prior, batch.others, self._load)) for n, cost, (m, prior) in costs if n]
        return steps_within(batch_of(slow, self._load), seconds)


def mixed(found: Sequence[tuple[float, tuple[float, float]]]) -> tuple[float, float]:
    """The mean over loads, by their shares of the requests."""
    return sum([share * used for share, (used, _) in found]), sum([share * within for share, (_, within) in found])


def worse(model: Model) -> Model:
    """Every cost one standard deviation higher."""
    return replace(model, pessimism=model.pessimism + 1.0)


def is_smaller(crew: Counts, kept: Counts | None) -> bool:
    """Does the crew lack a worker that the kept one has?"""
    return kept is None or any(map(lt, crew, kept))
