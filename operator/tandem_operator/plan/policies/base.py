"""What all policies share: the present counts by role, and a legal target as a decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem_operator.plan.candidates import clamp
from tandem_operator.plan.facts import Action, Decision, Role

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from tandem_operator.plan.facts import Limits, Observed, Target

    Policy = Callable[[Observed, datetime], Decision]


def start(seen: Observed) -> Decision | None:
    """The first target: the pools' initial replicas; where the status was lost, what the children do."""
    if seen.target is not None:
        return None
    counts = {p.name: p.desired for p in seen.pools if p.desired is not None}
    action = Action.ADOPT if counts else Action.INITIALIZE
    target = clamp(seen.limits, counts)
    if target is None:
        raise ValueError("pools' minima, roles' minima and the GPU budget contradict each other: no legal target")
    return Decision(action, "InitialTarget", f"prefill {target.prefill}, decode {target.decode}", target)


def wanted(seen: Observed) -> Target:
    """The present target; `start` runs first, so that there is one."""
    if seen.target is None:
        raise ValueError("no target: the policy's first decision must make one")
    return seen.target


def desired(seen: Observed, role: Role) -> int:
    """Replicas that the present target asks for, over the role's pools."""
    target = wanted(seen)
    return sum(target.pools[p.name] for p in seen.limits.pools if p.role is role)


def ready(seen: Observed, role: Role) -> int:
    """Workers of the role that serve now."""
    return sum(w.ready and not w.deleting and w.role is role for w in seen.workers)


def is_moving(seen: Observed) -> bool:
    """Is a pool still without the ready workers that its target asks for, or still getting rid of some?"""
    return any(p.ready != wanted(seen).pools[p.name] for p in seen.pools)


def bounds(limits: Limits, role: Role) -> tuple[int, int]:
    """(least, most) replicas of the role by its pools."""
    pools = [p for p in limits.pools if p.role is role]
    return sum(p.minimum for p in pools), sum(p.maximum for p in pools)


def gpus_per_replica(limits: Limits, role: Role) -> int:
    """GPUs of one worker of the role's first pool."""
    return next(p.gpus for p in limits.pools if p.role is role)


def hold(seen: Observed, reason: str, message: str) -> Decision:
    """Keep the target."""
    return Decision(Action.HOLD, reason, message, wanted(seen))


def go(seen: Observed, prefill: int, decode: int, message: str) -> Decision:
    """The decision for these counts, within bounds and budget; a hold where that is what there is."""
    counts = {**spread(seen.limits, Role.PREFILL, prefill), **spread(seen.limits, Role.DECODE, decode)}
    target = clamp(seen.limits, counts)
    if target is None or target == seen.target:
        return hold(seen, "AtTarget", message)
    return Decision(Action.SCALE, "Scaled", message, target)


def spread(limits: Limits, role: Role, count: int) -> dict[str, int]:
    """The role's replicas over its pools: every pool its minimum, then the pools in their order up to their maxima."""
    pools = [p for p in limits.pools if p.role is role]
    counts = {p.name: p.minimum for p in pools}
    left = count - sum(counts.values())
    for pool in pools:
        more = min(max(left, 0), pool.maximum - pool.minimum)
        counts[pool.name] += more
        left -= more
    return counts
