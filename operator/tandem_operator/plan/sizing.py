"""How many workers a load needs: of one role, of both at once, and the cheapest pair of roles within a budget."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from math import ceil, inf, isfinite
from typing import TYPE_CHECKING

from tandem_operator.plan.calibrate import UNCALIBRATED
from tandem_operator.plan.colocated import CHUNKS, Shared, predict_shared
from tandem_operator.plan.facts import Objective, Role
from tandem_operator.plan.kinds import Kind
from tandem_operator.plan.predict import Crew, Forecast, Model, Side, predict_tpot, predict_ttft, together
from tandem_operator.plan.roofline import slowed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from tandem_operator.plan.facts import Slo
    from tandem_operator.plan.traffic import Traffic

MOST_WORKERS = 4096
SPARE_WORKERS = 4  # more of one role than it needs, where that lets the other do with less
ENOUGH = 0.9995  # a side this sure gains nothing from another worker
# The prior's own doubt: one standard deviation of every cost, as a share of it.
DOUBT = UNCALIBRATED.doubt((1.0, 1.0, 1.0))


class Mode(StrEnum):
    """`spec.mode` that the advisor answers with."""

    DISAGGREGATED = "Disaggregated"
    COLOCATED = "Colocated"


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: these kinds of worker, this traffic, these targets and bounds."""

    kinds: tuple[Kind, ...]
    traffic: Traffic
    slo: Slo
    max_batch: int
    budget_gpus: int
    budget_per_device: Mapping[str, int] = field(default_factory=dict)
    objective: Objective = Objective.PRICE
    # By role (prefill, decode, both): the kinds that may have it, with the most workers of each. None: any, any number.
    offers: Mapping[Role, Mapping[Kind, int]] | None = None
    chunks: tuple[int, ...] = CHUNKS  # of colocated workers, tokens

    def offered(self, role: Role) -> Iterator[tuple[Kind, int]]:
        """Kinds that may have a role, with the most workers of each within the budget."""
        kinds = dict.fromkeys(self.kinds, MOST_WORKERS) if self.offers is None else self.offers.get(role, {})
        yield from ((kind, min(self.budget_gpus // kind.gpus, most)) for kind, most in kinds.items())

    @property
    def wanted(self) -> float:
        """The attainment that is asked for, 0..1."""
        return self.slo.percentile / 100

    @property
    def unit(self) -> str:
        """What a plan costs: `USD` an hour or `W`; `GPUs` where a figure is missing, so that none looks cheap."""
        by_power = self.objective is Objective.POWER
        if not all((kind.watts if by_power else kind.price_per_hour) > 0 for kind in self.kinds):
            return "GPUs"
        return "W" if by_power else "USD"

    def cost(self, groups: Iterable[Group]) -> float:
        """A plan's cost by the objective, in `unit`."""
        unit = self.unit
        return sum(group.workers * group.kind.cost(unit) for group in groups)

    def allows(self, groups: Iterable[Group]) -> bool:
        """Are these workers within the budget, in all and by device?"""
        used: dict[str, int] = {}
        for group in groups:
            used[group.kind.device.name] = used.get(group.kind.device.name, 0) + group.gpus
        by_device = all(used.get(name, 0) <= most for name, most in self.budget_per_device.items())
        return by_device and sum(used.values()) <= self.budget_gpus


@dataclass(frozen=True, slots=True)
class Group:
    """Equal workers."""

    kind: Kind
    workers: int

    @property
    def gpus(self) -> int:
        """GPUs of all of them."""
        return self.workers * self.kind.gpus


@dataclass(frozen=True, slots=True)
class Plan:
    """Prefill and decode workers, or one group that does both with its chunk size."""

    groups: tuple[Group, ...]
    chunk_tokens: int | None = None

    @property
    def mode(self) -> Mode:
        """One group does both roles."""
        return Mode.COLOCATED if len(self.groups) == 1 else Mode.DISAGGREGATED

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return sum(group.gpus for group in self.groups)


class Sizer:
    """Forecasts for one question with every cost times `factor`; nothing is computed twice."""

    def __init__(self, question: Question, factor: float) -> None:
        """factor: 1 takes the data sheets at their word, 1 + DOUBT is one standard deviation slower."""
        self.question, self.factor = question, factor
        self._load, self._slo = question.traffic.load(), question.slo
        self._model = Model(UNCALIBRATED, UNCALIBRATED, question.max_batch)
        self._kinds = {kind: replace(kind, prior=slowed(kind.prior, factor)) for kind in question.kinds}
        self._sides: dict[tuple[str, Group], Side] = {}
        self._shared: dict[tuple[Group, int], Shared] = {}

    def prefill(self, group: Group) -> Side:
        """TTFT of prefill workers."""
        if (found := self._sides.get(("prefill", group))) is None:
            crew = Crew(self._kinds[group.kind].prior, group.workers)
            found = self._sides["prefill", group] = predict_ttft([crew], self._load, self._model, self._slo)
        return found

    def decode(self, group: Group) -> Side:
        """TPOT of decode workers."""
        if (found := self._sides.get(("decode", group))) is None:
            crew = Crew(self._kinds[group.kind].prior, group.workers)
            found = self._sides["decode", group] = predict_tpot([crew], self._load, self._model, self._slo)
        return found

    def shared(self, group: Group, chunk_tokens: int) -> Shared:
        """Both of colocated workers."""
        if (found := self._shared.get((group, chunk_tokens))) is None:
            kind = self._kinds[group.kind]
            found = predict_shared(kind, group.workers, chunk_tokens, self._load, self._model, self._slo)
            self._shared[group, chunk_tokens] = found
        return found

    def forecast(self, plan: Plan) -> Forecast:
        """What a plan gives."""
        if plan.chunk_tokens is not None:
            return self.shared(plan.groups[0], plan.chunk_tokens).forecast
        prefill, decode = plan.groups
        return together(self.prefill(prefill), self.decode(decode), 0.0)


def best_split(sizer: Sizer) -> Plan | None:
    """The cheapest prefill and decode workers that meet the targets within the budget; None where none do."""
    question = sizer.question
    prefills = list(enough(question, sizer.prefill, Role.PREFILL))
    decodes = list(enough(question, sizer.decode, Role.DECODE))
    plans = [
        ((question.cost(groups), groups[0].gpus + groups[1].gpus, -share), Plan(groups))
        for prefill, within in prefills
        for decode, also in decodes
        if (share := within * also) >= question.wanted and question.allows(groups := (prefill, decode))
    ]
    return min(plans, key=lambda ranked: ranked[0])[1] if plans else None


def best_shared(sizer: Sizer, most_cost: float = inf) -> Plan | None:
    """The cheapest colocated workers and their chunk size; None where none meet the targets within budget and cost."""
    question, best = sizer.question, None
    for chunk in question.chunks:

        def side(group: Group, chunk: int = chunk) -> Side:
            found = sizer.shared(group, chunk)
            # The share that prompts take falls with the number of workers alone: a sure bound from below.
            return Side(found.prefill_share, None, found.forecast.attainment)

        # A chunk size that cannot do with what the best one costs is left after one look.
        for group, within in enough(question, side, Role.BOTH, 0, best[0][0] if best else most_cost):
            rank = (question.cost([group]), group.gpus, -within, chunk)
            if question.allows([group]) and (best is None or rank < best[0]):
                best = rank, Plan((group,), chunk)
    return best[1] if best else None


def enough(
    question: Question,
    side: Callable[[Group], Side],
    role: Role,
    spare: int = SPARE_WORKERS,
    most_cost: float = inf,
) -> Iterator[tuple[Group, float]]:
    """Groups of every kind that reach the wanted share, each with what it reaches: the fewest, and a few more."""
    for kind, offered in question.offered(role):
        most = offered
        if isfinite(most_cost):
            most = min(most, int(most_cost / question.cost([Group(kind, 1)]) + 1e-9))
        first = fewest(partial(side_of, side, kind), question.wanted, most)
        if first is None:
            continue
        for workers in range(first, min(first + spare, most) + 1):
            within = side(Group(kind, workers)).within
            yield Group(kind, workers), within
            if within >= ENOUGH:
                break


def side_of(side: Callable[[Group], Side], kind: Kind, workers: int) -> Side:
    """The side of so many workers of a kind."""
    return side(Group(kind, workers))


def fewest(side: Callable[[int], Side], wanted: float, most: int) -> int | None:
    """The fewest workers whose side is within its target for the wanted share; None where `most` do not reach it.

    Below its capacity no side meets any target, so the search begins there, with steps that double.
    """
    if most < 1:
        return None
    alone = side(1).utilisation
    if not isfinite(alone) or alone > most or side(most).within < wanted:
        return None
    low, step = max(ceil(alone), 1) - 1, 1
    while side(min(low + step, most)).within < wanted:
        low, step = low + step, 2 * step
    high = min(low + step, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if side(middle).within >= wanted else (middle, high)
    return high


def most_attaining(sizer: Sizer) -> Plan | None:
    """Where nothing meets the targets: the plan within the budget that comes closest, lightest first among equals."""
    plans = list(within_budget(sizer.question))
    if not plans:
        return None

    def rank(plan: Plan) -> tuple[float, float, float]:
        found = sizer.forecast(plan)
        return (-round(found.attainment, 2), round(found.overload, 2), sizer.question.cost(plan.groups))

    return min(plans, key=rank)


def within_budget(question: Question) -> Iterator[Plan]:
    """Plans that use the budget up: colocated of each kind and chunk size, and splits of each pair of kinds."""
    for kind in question.kinds:
        if count := most_of(question, kind, question.budget_gpus):
            yield from (Plan((Group(kind, count),), chunk) for chunk in CHUNKS)
    for a in question.kinds:
        for b in question.kinds:
            step = max(question.budget_gpus // a.gpus // 16, 1)
            for prefill in range(1, question.budget_gpus // a.gpus + 1, step):
                decode = most_of(question, b, question.budget_gpus - prefill * a.gpus)
                groups = (Group(a, prefill), Group(b, decode))
                if decode and question.allows(groups):
                    yield Plan(groups)


def most_of(question: Question, kind: Kind, gpus: int) -> int:
    """Workers of a kind that so many GPUs, and the budget of its device, allow."""
    own = question.budget_per_device.get(kind.device.name, gpus)
    return min(gpus, own) // kind.gpus
