"""The advisor: disaggregate or not, with which GPUs, how many, and how sure that is. Pure; the words are beside it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from tandem_operator.plan.facts import Slo
from tandem_operator.plan.sizing import DOUBT, Mode, Plan, Question, Sizer, best_shared, best_split, most_attaining

if TYPE_CHECKING:
    from collections.abc import Callable

    from tandem_operator.plan.kinds import Kind
    from tandem_operator.plan.predict import Forecast

# Two pools and a transfer are more to run and to break: disaggregation must save this share of the cost.
WORTH = 0.05
SIGMAS = (-1, 0, 1)  # every cost so many standard deviations from the data sheet
MOST_RELAXED = 1000.0  # a target that must be a thousand times as long is no target
CENT = 0.01  # so that rounding decides nothing
CLOSE = 1.02  # the closest feasible SLO is found to 2 %


@dataclass(frozen=True, slots=True)
class Outlook:
    """A plan with its forecasts by sigma (-1: a standard deviation faster than the data sheet) and what it takes."""

    plan: Plan
    by_sigma: dict[int, Forecast]
    usd_per_hour: float | None  # None: a price is not known
    watts: float | None  # None: a power is not known
    goodput: float  # requests/s that meet both targets

    @property
    def expected(self) -> Forecast:
        """By the data sheet."""
        return self.by_sigma[0]

    @property
    def sure(self) -> float:
        """Attainment if every cost is one standard deviation higher, 0..1."""
        return min(forecast.attainment for forecast in self.by_sigma.values())


@dataclass(frozen=True, slots=True)
class Advice:
    """The answer. `split` and `shared` are the best of each mode; None where the mode cannot meet the targets."""

    question: Question
    mode: Mode
    is_feasible: bool
    best: Outlook
    split: Outlook | None
    shared: Outlook | None
    mode_by_sigma: dict[int, Mode | None]  # the answer if all costs were so; None: nothing meets the targets
    closest: Slo | None = None  # where nothing meets the targets: the nearest ones that `best` does meet

    @property
    def is_sure(self) -> bool:
        """Is the answer the same a standard deviation to either side?"""
        return len(set(self.mode_by_sigma.values())) == 1

    @property
    def other(self) -> Outlook | None:
        """The best plan of the mode that was not chosen."""
        return self.shared if self.mode is Mode.DISAGGREGATED else self.split


def advise(question: Question) -> Advice | None:
    """The cheapest plan that meets the targets even one standard deviation slower.

    Else the cheapest for the closest targets that can be met, or the one that comes closest where the load itself is
    too much. None where the budget does not allow a single worker.
    """
    stern, closest = Sizer(question, factor_of(1)), None
    split, shared = best_split(stern), best_shared(stern)
    best = better(question, split, shared)
    is_feasible = best is not None
    if best is None and (closest := closest_slo(question)) is not None:
        best = best_plan(Sizer(replace(question, slo=closest), factor_of(1)))
    if best is None and (best := most_attaining(stern)) is None:
        return None
    sizers = {sigma: stern if sigma == 1 else Sizer(question, factor_of(sigma)) for sigma in SIGMAS}
    modes = {sigma: mode_at(sizer) for sigma, sizer in sizers.items()}
    return Advice(
        question,
        best.mode,
        is_feasible,
        outlook(sizers, best),
        outlook(sizers, split) if split else None,
        outlook(sizers, shared) if shared else None,
        modes,
        closest,
    )


def factor_of(sigma: int) -> float:
    """By how much every cost is longer than the data sheet's."""
    return 1 + sigma * DOUBT


def better(question: Question, split: Plan | None, shared: Plan | None) -> Plan | None:
    """The split only where it clearly saves: a tie is colocated."""
    if split is None or shared is None:
        return split or shared
    return split if question.cost(split.groups) <= (1 - WORTH) * question.cost(shared.groups) else shared


def mode_at(sizer: Sizer) -> Mode | None:
    """The answer that these costs give; None where nothing meets the targets."""
    plan = best_plan(sizer)
    return plan.mode if plan else None


def best_plan(sizer: Sizer) -> Plan | None:
    """The plan that these costs give; None where nothing meets the targets."""
    question, split = sizer.question, best_split(sizer)
    # Colocated workers that cost more than what the split is worth could not be the answer.
    bound = question.cost(split.groups) / (1 - WORTH) + CENT if split else inf
    return better(question, split, best_shared(sizer, bound))


def answer(question: Question) -> Mode | None:
    """Only the mode that `advise` would give; None where nothing meets the targets."""
    return mode_at(Sizer(question, factor_of(1)))


def outlook(sizers: dict[int, Sizer], plan: Plan) -> Outlook:
    """A plan's forecasts and costs."""
    question = sizers[0].question
    forecasts = {sigma: sizer.forecast(plan) for sigma, sizer in sizers.items()}
    goodput = forecasts[0].attainment * question.traffic.sized_rate
    return Outlook(plan, forecasts, total(plan, "USD"), total(plan, "W"), goodput)


def total(plan: Plan, unit: str) -> float | None:
    """USD an hour or watts of a plan; None where a worker's are not known."""
    each = [(group.workers, group.kind.cost(unit)) for group in plan.groups]
    return sum(workers * cost for workers, cost in each) if all(cost > 0 for _, cost in each) else None


def look_at(question: Question, plan: Plan) -> Outlook:
    """The outlook of any plan, such as the one that is written in a resource."""
    return outlook({sigma: Sizer(question, factor_of(sigma)) for sigma in SIGMAS}, plan)


# --- what is impossible, and what is next to it ---


def closest_slo(question: Question) -> Slo | None:
    """The nearest targets that the budget can meet: one of both relaxed if that is enough, else both by one factor.

    None where no targets help, since the load itself is beyond the budget.
    """
    slo = question.slo

    def with_factors(ttft: float, tpot: float) -> Slo:
        return Slo(up(slo.ttft_ms * ttft), up(slo.tpot_ms * tpot), slo.percentile)

    ways: tuple[Callable[[float], Slo], ...] = (
        lambda factor: with_factors(factor, 1.0),
        lambda factor: with_factors(1.0, factor),
    )
    found = [(factor, way(factor)) for way in ways if (factor := least_factor(question, way)) is not None]
    if not found and (factor := least_factor(question, lambda f: with_factors(f, f))) is not None:
        found = [(factor, with_factors(factor, factor))]
    return min(found, key=lambda pair: pair[0])[1] if found else None


def least_factor(question: Question, way: Callable[[float], Slo]) -> float | None:
    """The least factor, to 2 %, whose targets can be met; None where even the largest does not help."""

    def is_met(factor: float) -> bool:
        return answer(replace(question, slo=way(factor))) is not None

    if not is_met(MOST_RELAXED):
        return None
    low, high = 1.0, MOST_RELAXED
    while high / low > CLOSE:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if is_met(middle) else (middle, high)
    return high


def up(milliseconds: float) -> int:
    """Whole milliseconds, never fewer."""
    return -int(-milliseconds // 1)


def gpus_needed(question: Question, most: int) -> int | None:
    """GPUs that would meet the targets if the budget were `most`; None where even those do not."""
    free = replace(question, budget_gpus=most, budget_per_device={})
    plan = best_plan(Sizer(free, factor_of(1)))
    return plan.gpus if plan else None


def fastest(question: Question) -> tuple[tuple[Kind, float], tuple[Kind, float]]:
    """What no number of workers can beat, in ms one standard deviation slow: a lone prompt, and a lone token's step."""
    sizer = Sizer(question, factor_of(1))
    tokens, context = question.traffic.computed_tokens, question.traffic.context_tokens

    def prompt_ms(kind: Kind) -> float:
        return 1000 * sizer.factor * sum(kind.prior.prefill_parts(tokens))

    def step_ms(kind: Kind) -> float:
        return 1000 * sizer.factor * sum(kind.prior.step_parts(1.0, context))

    first, steps = min(question.kinds, key=prompt_ms), min(question.kinds, key=step_ms)
    return (first, prompt_ms(first)), (steps, step_ms(steps))
