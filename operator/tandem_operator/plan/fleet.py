"""Several resources share one GPU budget: minima first, then by priority, then where a GPU serves most requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NEAR = 1e-9  # gains closer than this are equal


@dataclass(frozen=True, slots=True)
class Claim:
    """What one resource would make of GPUs.

    `steps`: (GPUs in all, predicted attainment 0..1) of its best plans, by GPUs; a resource is never granted a number
    between two of its plans. `rate` weighs attainment, so that it counts requests per second. `wanted`: the attainment
    that its SLO asks for; GPUs beyond the first plan that reaches it are not asked for.
    """

    name: str
    priority: int
    minimum: int
    steps: tuple[tuple[int, float], ...]
    rate: float = 1.0
    wanted: float = 1.0


@dataclass(frozen=True, slots=True)
class Grant:
    """The GPUs that one resource may use, what it is predicted to attain with them, and why not more."""

    gpus: int
    attainment: float | None  # None: no plan of the claim fits
    why: str


@dataclass(frozen=True, slots=True)
class Raise:
    """From one plan to a larger one: `gain` requests in time per second for each further GPU."""

    gpus: int
    attainment: float
    gain: float


def share(requests: Sequence[Claim], budget: int) -> Mapping[str, Grant]:
    """Each resource's grant; the sum never exceeds the budget, and the order of the requests changes nothing.

    1. Minima, the highest priority first where the budget does not hold all of them.
    2. Of the rest, by priority; within one priority always the raise of the greatest gain for each GPU that still
       fits (marginal allocation, Fox 1966: optimal where gains fall, so each claim is read along its concave hull).
       Ties go to the resource with fewer GPUs, then by name.

    Raises ValueError for two claims of one name, a negative budget or minimum.
    """
    check(requests, budget)
    ordered = sorted(requests, key=lambda c: (-c.priority, c.name))
    given: dict[str, int] = {}
    for claim in ordered:
        given[claim.name] = min(claim.minimum, budget - sum(given.values()))
    for priority in sorted({c.priority for c in ordered}, reverse=True):
        members = [c for c in ordered if c.priority == priority]
        while (best := best_raise(members, given, budget - sum(given.values()))) is not None:
            claim, step = best
            given[claim.name] = step.gpus
    left = budget - sum(given.values())
    return {c.name: Grant(given[c.name], attainment_at(c, given[c.name]), why(c, given[c.name], left)) for c in ordered}


def check(requests: Sequence[Claim], budget: int) -> None:
    """Refuse what no share can be made of."""
    names = [c.name for c in requests]
    if doubled := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"two claims are named {sorted(doubled)[0]}: a resource claims once")
    if budget < 0 or any(c.minimum < 0 for c in requests):
        raise ValueError("a budget and minima are at least 0 GPUs")


def best_raise(claims: Sequence[Claim], given: Mapping[str, int], left: int) -> tuple[Claim, Raise] | None:
    """The raise that serves most requests for each further GPU and still fits; None when nothing is gained."""
    found = [(c, step) for c in claims if (step := next_raise(c, given[c.name], left)) is not None]
    if not found:
        return None
    most = max(step.gain for _, step in found)
    equal = [(c, step) for c, step in found if step.gain >= most - NEAR]
    return min(equal, key=lambda x: (given[x[0].name], x[0].name))


def next_raise(claim: Claim, gpus: int, left: int) -> Raise | None:
    """The steepest raise from here: the next corner of the concave hull of what fits."""
    now = attainment_at(claim, gpus)
    if now is not None and now >= claim.wanted:
        return None
    base = now or 0.0
    raises = [
        Raise(n, reached, claim.rate * (min(reached, claim.wanted) - base) / (n - gpus))
        for n, reached in claim.steps
        if gpus < n <= gpus + left and min(reached, claim.wanted) > base
    ]
    return max(raises, key=lambda r: (r.gain, -r.gpus), default=None)


def attainment_at(claim: Claim, gpus: int) -> float | None:
    """The best of the claim's plans that so many GPUs hold."""
    return max((reached for n, reached in claim.steps if n <= gpus), default=None)


def why(claim: Claim, gpus: int, left: int) -> str:
    """`8 GPUs: predicted to reach 95 %`, or what more would take; without figures that change with every look."""
    now, wanted = attainment_at(claim, gpus), f"{100 * claim.wanted:.0f} %"
    if gpus < claim.minimum:
        return f"{gpus} GPUs of a minimum of {claim.minimum}: higher priorities' minima took the budget"
    if now is not None and now >= claim.wanted:
        return f"{gpus} GPUs: predicted to reach {wanted}"
    reached = "no plan fits" if now is None else f"predicted to miss {wanted}"
    better = [n for n, value in claim.steps if n > gpus and value > (now or 0.0)]
    if not better:
        return f"{gpus} GPUs: {reached}; no plan of the resource does better"
    return f"{gpus} GPUs: {reached}; the next plan takes {min(better)}, and {left} are left of the budget"
