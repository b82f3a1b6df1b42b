"""Which events a changed status is worth: transitions only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem_operator.api.conditions import (
    KV_TRANSFER_READY,
    METRICS_AVAILABLE,
    READY,
    SCALING_LIMITED,
    SLO_MET,
    STALLED,
)
from tandem_operator.edges.events import Event

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tandem_operator.api.status import Status

GOOD = frozenset({READY, METRICS_AVAILABLE, SLO_MET, KV_TRANSFER_READY})
BAD = frozenset({STALLED, SCALING_LIMITED})


def events_between(old: Status, new: Status) -> Iterator[Event]:
    """A new target, a new recommendation, and every condition that turned.

    Of a resource that has come up Ready is said: that all else is well too, for the first time, is in its status.
    """
    decision = new.decision
    # The first target is no turn: the status has it, and hundreds of resources may come up at once.
    if decision is not None and old.decision is not None and decision.target != old.decision.target:
        yield Event("Rebalanced", decision.action, f"#{decision.id} {decision.message}")
    elif decision is not None and decision.action == "Recommend" and decision != old.decision:
        yield Event("Recommended", decision.action, decision.message)
    if new.sleep is not None and (old.sleep is None or old.sleep.asleep != new.sleep.asleep):
        yield Event("FellAsleep" if new.sleep.asleep else "WokenUp", "Scale", new.sleep.message)
    for condition in new.conditions:
        before = old.condition(condition.type)
        was = before.status if before else "Unknown"
        turned = condition.status != was or (condition.type == STALLED and before and before.reason != condition.reason)
        if not turned or condition.status == "Unknown" or condition.type not in GOOD | BAD:
            continue
        if condition.type in BAD and condition.status == "False":
            continue
        if condition.type in GOOD - {READY} and condition.status == "True" and was == "Unknown":
            continue
        warning = condition.status == "False" if condition.type in GOOD else True
        yield Event(condition.reason, f"{condition.type}{condition.status}", condition.message, warning)
