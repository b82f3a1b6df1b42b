"""From each resource's facts to its part of the GPUs that a fleet shares. Pure; `fleet.share` does the sharing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tandem_operator.plan.candidates import clamp, gpus_of, has_both
from tandem_operator.plan.facts import RebalanceMode, Verdict
from tandem_operator.plan.fleet import Claim, share
from tandem_operator.plan.guards import hold_when_blind
from tandem_operator.plan.search import Bar, Region
from tandem_operator.plan.study import reach, study

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from tandem_operator.plan.facts import Limits, Observed
    from tandem_operator.plan.study import Study


@dataclass(frozen=True, slots=True)
class Member:
    """One resource of the fleet, its facts without any share of the budget."""

    name: str
    priority: int
    seen: Observed


@dataclass(frozen=True, slots=True)
class Cap:
    """The GPUs that a resource may have now, and why not more; `reason`: of the condition, where it binds."""

    gpus: int
    why: str
    reason: str = "BudgetExhausted"


def caps(members: Sequence[Member], budget: int, now: datetime) -> Mapping[str, Cap]:
    """Every resource's cap, by name."""
    claims = [claim_of(member, now) for member in members]
    return caps_of(claims, {member.name: in_use(member.seen) for member in members}, budget)


def caps_of(claims: Sequence[Claim], used: Mapping[str, int], budget: int) -> Mapping[str, Cap]:
    """What one gives is another's only once it is given: the sum in use stays in the budget.

    Minima are what people wrote, and always allowed: the budget bounds what is chosen above them. A resource shrinks
    only for one of higher priority that asks for more than is free.
    """
    grants = share(claims, budget)
    free = max(0, budget - sum(used.values()))
    found: dict[str, int] = {}
    for claim in sorted(claims, key=lambda c: (-c.priority, c.name)):
        more = min(max(grants[claim.name].gpus - used[claim.name], 0), free)
        found[claim.name] = used[claim.name] + more
        free -= more
    # Equals take nothing from each other: a forecast that wavers must not move GPUs to and fro.
    unmet = max((c.priority for c in claims if grants[c.name].gpus > found[c.name]), default=None)
    for claim in claims:
        if unmet is not None and claim.priority < unmet:
            found[claim.name] = min(found[claim.name], grants[claim.name].gpus)
    least = {claim.name: claim.minimum for claim in claims}
    return {name: Cap(max(gpus, least[name]), grants[name].why) for name, gpus in found.items()}


def in_use(seen: Observed) -> int:
    """GPUs that the resource has, or is about to have."""
    if seen.limits.suspended:
        return 0
    wanted = seen.target.pools if seen.target else {}
    live = {pool.name: pool.desired or 0 for pool in seen.pools}
    pools = {p.name: max(wanted.get(p.name, 0), live.get(p.name, 0)) for p in seen.limits.pools}
    return gpus_of(seen.limits, pools) + seen.leaving_gpus


def claim_of(member: Member, now: datetime) -> Claim:
    """What the resource would make of GPUs; one whose load is not known keeps what it has."""
    seen = member.seen
    limits, wanted = seen.limits, seen.limits.slo.percentile / 100
    if limits.suspended:
        return Claim(member.name, member.priority, 0, (), wanted=wanted)
    least = least_gpus(limits)
    if seen.target is None:  # a new one: what it begins with is all that is known
        first = clamp(limits, {})
        steps = ((gpus_of(limits, first.pools), wanted),) if first else ()
        return Claim(member.name, member.priority, least, steps, wanted=wanted)
    case = study_of(seen, now)
    if case is None:
        return Claim(member.name, member.priority, max(least, gpus_of(limits, seen.target.pools)), (), wanted=wanted)
    return Claim(member.name, member.priority, least, steps_of(case), case.load.arrival_rate, wanted)


def study_of(seen: Observed, now: datetime) -> Study | None:
    """The study of the resource's load; None where the planner may not move it, or cannot tell."""
    if seen.limits.mode is not RebalanceMode.AUTO or has_both(seen.limits) or hold_when_blind(seen, now) is not None:
        return None
    case = study(seen, now)
    return None if isinstance(case, Verdict) else case


def least_gpus(limits: Limits) -> int:
    """The fewest that the pools' and the roles' minima allow; what no bounds allow needs none."""
    least = clamp(limits, {pool.name: pool.minimum for pool in limits.pools})
    return gpus_of(limits, least.pools) if least else 0


def steps_of(case: Study) -> tuple[tuple[int, float], ...]:
    """(GPUs, attainment less its uncertainty) of what one step reaches: less, the same, enough, and the most."""
    low, high = reach(case.seen.limits, case.search.now)
    now = case.current.gpus
    plans = [
        case.search.closest(Region(low, high, most_gpus=max(0, now - 1))),
        case.search.cheapest(Region(low, high), Bar(sure=case.wanted)),
        case.search.closest(Region(low, high)),
    ]
    options = [case.current, *(option for plan in plans if (option := case.option(plan)) is not None)]
    best: dict[int, float] = {}
    for option in options:
        best[option.gpus] = max(option.sure, best.get(option.gpus, 0.0))
    return tuple(sorted(best.items()))


def tighter(one: Cap | None, other: Cap | None) -> Cap | None:
    """The cap that binds first; None where there is none."""
    return min((cap for cap in (one, other) if cap is not None), key=lambda cap: cap.gpus, default=None)


def capped(limits: Limits, cap: Cap | None) -> Limits:
    """The limits with the fleet's bound on them; none where no budget is shared."""
    if cap is None:
        return limits
    return replace(limits, budget_gpus=cap.gpus if limits.budget_gpus is None else min(cap.gpus, limits.budget_gpus))
