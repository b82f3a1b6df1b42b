"""The policy: guards that hold, then moves from the cheapest to the dearest; the first rule that speaks decides."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tandem_operator.plan.ahead import meanwhile
from tandem_operator.plan.bounds import BOUNDS, target_of
from tandem_operator.plan.facts import Action, Decision, RebalanceMode, Verdict
from tandem_operator.plan.guards import GUARDS, hold, hold_in_cooldown
from tandem_operator.plan.moves import MOVES, stay
from tandem_operator.plan.shared import size_colocated
from tandem_operator.plan.stuck import as_decided, as_served, is_stuck
from tandem_operator.plan.study import study

if TYPE_CHECKING:
    from datetime import datetime

    from tandem_operator.plan.facts import Observed


def decide(seen: Observed, now: datetime) -> Decision:
    """What to do for one resource now. Deterministic: the same facts give the same decision."""
    for bound in BOUNDS:
        if (decision := bound(seen, now)) is not None:
            return decision
    return in_mode(seen, now)


def in_mode(seen: Observed, now: datetime) -> Decision:
    """The free decision, as far as `rebalance.mode` lets it be carried out."""
    wanted = choose(seen, now)
    target = target_of(seen)
    if seen.limits.mode is RebalanceMode.OFF:
        return replace(
            wanted, action=Action.HOLD, reason="RebalanceOff", target=target, message=f"off; {would(wanted)}"
        )
    if seen.limits.mode is RebalanceMode.RECOMMEND and wanted.action is not Action.HOLD:
        return replace(wanted, action=Action.RECOMMEND, target=target, message=f"recommended: {wanted.message}")
    return wanted


def would(wanted: Decision) -> str:
    """What Auto would do, in words."""
    if wanted.action is Action.HOLD:
        return f"Auto would hold ({wanted.reason}): {wanted.message}"
    return f"Auto would move {wanted.message}"


def choose(seen: Observed, now: datetime) -> Decision:
    """The decision of mode Auto: guards first, then the moves on one study of the facts."""
    for guard in GUARDS:
        if (decision := guard(seen, now)) is not None:
            return meanwhile(seen, now, decision)
    if (sized := size_colocated(seen, now)) is not None:
        return sized
    if is_stuck(seen, now):
        return as_decided(seen, weigh(as_served(seen), now))
    return weigh(seen, now)


def weigh(seen: Observed, now: datetime) -> Decision:
    """The moves in their order, once the metrics are of this plan."""
    if (waiting := hold_in_cooldown(seen, now)) is not None:
        return meanwhile(seen, now, waiting)
    case = study(seen, now)
    if isinstance(case, Verdict):
        return hold(seen, case.reason, case.message)
    for move in MOVES:
        if (decision := move(case)) is not None:
            return decision
    return stay(case)
