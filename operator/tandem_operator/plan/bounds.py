"""What the resource says, whatever the metrics are: the first target, a lost one, and one that an edit forbids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem_operator.plan.candidates import clamp, home_roles, is_legal
from tandem_operator.plan.facts import Action, Decision, Role, Target
from tandem_operator.plan.words import move_words

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from tandem_operator.plan.facts import Observed

    Guard = Callable[[Observed, datetime], Decision | None]


def initialize(seen: Observed, now: datetime) -> Decision | None:  # noqa: ARG001
    """No target and no children: `initial`, within every bound."""
    if seen.target is not None or any(p.desired is not None for p in seen.pools):
        return None
    return first_target(seen, Action.INITIALIZE, "InitialTarget", {}, None)


def adopt(seen: Observed, now: datetime) -> Decision | None:  # noqa: ARG001
    """The status was lost: what the children do is the intent, clamped."""
    if seen.target is not None:
        return None
    counts = {p.name: p.desired for p in seen.pools if p.desired is not None}
    if not any(counts.values()):  # it was suspended: children without pods tell nothing
        return first_target(seen, Action.ADOPT, "StatusLost", {}, None)
    return first_target(seen, Action.ADOPT, "StatusLost", counts, prefill_now(seen, counts))


def prefill_now(seen: Observed, counts: dict[str, int]) -> int:
    """Workers that prefill; a pod that is missing from its pool counts by the pool's role, in which it will start."""
    living = [w for w in seen.workers if not w.deleting]
    found = sum(w.role is Role.PREFILL for w in living)
    for pool in seen.limits.pools:
        if pool.role is Role.PREFILL:
            found += max(counts.get(pool.name, pool.initial) - sum(w.pool == pool.name for w in living), 0)
    return found


def obey_bounds(seen: Observed, now: datetime) -> Decision | None:  # noqa: ARG001
    """The resource was edited and the target lies outside: the nearest legal one, whatever the mode and metrics."""
    target = target_of(seen)
    if is_legal(seen.limits, target):
        return None
    nearest = clamp(seen.limits, dict(target.pools), None)
    home = home_roles(seen.limits, nearest.pools)[0] if nearest else 0
    return first_target(seen, Action.SCALE, "BoundsChanged", dict(target.pools), home + flipped(seen, target))


def flipped(seen: Observed, target: Target) -> int:
    """Workers that the target has prefill beyond their pools' roles (negative: decode): an edit of pools keeps these.

    Not the sum: who asks for more workers of a pool wants them in its role. Those of a pool that was taken out go.
    """
    known = {pool.name for pool in seen.limits.pools}
    gone = sum(w.role is Role.PREFILL and w.pool not in known for w in seen.workers if not w.deleting)
    return target.prefill - gone - home_roles(seen.limits, target.pools)[0]


def hold_when_suspended(seen: Observed, now: datetime) -> Decision | None:  # noqa: ARG001
    """No pods are wanted now; the target is kept for the resource's return."""
    if not seen.limits.suspended:
        return None
    target = target_of(seen)
    if seen.limits.asleep:
        words = f"asleep: no workers; prefill {target.prefill}, decode {target.decode} are kept for the next request"
        return Decision(Action.HOLD, "Asleep", words, target)
    words = f"suspended: no pods; prefill {target.prefill}, decode {target.decode} are kept for its return"
    return Decision(Action.HOLD, "Suspended", words, target)


def first_target(seen: Observed, action: Action, reason: str, counts: dict[str, int], prefill: int | None) -> Decision:
    """A target from counts rather than from a forecast; a hold where the bounds contradict each other."""
    target = clamp(seen.limits, counts, prefill)
    if target is None:
        kept = seen.target or minimal(seen)
        message = "pools' minima, roles' minima and the GPU budget contradict each other: no legal target"
        return Decision(Action.HOLD, "ImpossibleBounds", message, kept)
    before = seen.target
    words = move_words(before, target) if before else f"prefill {target.prefill}, decode {target.decode}"
    source = {"InitialTarget": "the pools' initial replicas", "StatusLost": "adopted from the running pools"}
    return Decision(
        action, reason, f"{words}: {source.get(reason, 'the resource allows no more of the old target')}", target
    )


def minimal(seen: Observed) -> Target:
    """Every pool at its minimum: the least that a person asked for."""
    counts = {p.name: p.minimum for p in seen.limits.pools}
    return Target(counts, *home_roles(seen.limits, counts))


def target_of(seen: Observed) -> Target:
    """The present target; the bounds' rules run first, so that there is one."""
    if seen.target is None:
        raise ValueError("no target: initialize or adopt must decide first")
    return seen.target


BOUNDS: tuple[Guard, ...] = (
    initialize,  # first target, from `initial`
    adopt,  # status lost: the children tell
    obey_bounds,  # the resource was edited
    hold_when_suspended,  # nothing serves, so there is nothing to judge
)
