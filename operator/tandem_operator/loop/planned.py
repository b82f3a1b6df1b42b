"""The plan of one pass: the decision, and what it means for the children. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tandem_operator.loop.modes import changing
from tandem_operator.plan.candidates import is_legal
from tandem_operator.plan.decide import decide
from tandem_operator.plan.facts import Decision, Target

if TYPE_CHECKING:
    from datetime import datetime

    from tandem_operator.loop.observe import Seen
    from tandem_operator.plan.modes import ModeChoice
    from tandem_operator.plan.sleep import SleepChoice


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be; `decision` None: the planner was not asked, the written target stands."""

    target: Target
    decision: Decision | None = None
    mode: ModeChoice | None = None  # of mode Auto, where there is news of it
    sleep: SleepChoice | None = None  # of scaleToZero, where it changes


def make_plan(seen: Seen, now: datetime, *, ask: bool, mode: ModeChoice | None = None) -> Plan:
    """Ask the planner when there is a new look or no legal target; in between, carry out what is written.

    `mode`: what the choice of the mode says; a change of it is the decision.
    """
    target = seen.facts.target
    if (change := changing(seen, mode)) is not None:
        return Plan(change.target, change, mode)
    if not ask and target is not None and is_legal(seen.facts.limits, target):
        return Plan(target)
    decision = decide(seen.facts, now)
    return Plan(decision.target, decision, mode)


def is_possible(seen: Seen, plan: Plan) -> bool:
    """Can the target be carried out at all? Not where the bounds contradict each other."""
    names = {pool.name for pool in seen.resource.spec.pools}
    return set(plan.target.pools) == names and (plan.decision is None or plan.decision.reason != "ImpossibleBounds")
