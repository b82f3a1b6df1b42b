"""A move that never ends: pods of the target that do not become ready. After a deadline, what serves decides."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tandem_operator.plan.bounds import target_of
from tandem_operator.plan.candidates import is_legal
from tandem_operator.plan.facts import Action, Role, Target

if TYPE_CHECKING:
    from datetime import datetime

    from tandem_operator.plan.facts import Decision, Limits, Observed, WorkerState

# A large model's pod pulls its image and loads its weights in some minutes; Kubernetes itself calls a Deployment that
# makes no progress failed after 600 s (progressDeadlineSeconds). Half as long again leaves that to be reported first.
DEADLINE_S = 900.0
DEADLINE_INTERVALS = 10


def deadline_s(limits: Limits) -> float:
    """How long a move may stay open."""
    return max(DEADLINE_S, DEADLINE_INTERVALS * limits.interval_s)


def serving(seen: Observed) -> list[WorkerState]:
    """Workers that the router sends requests to."""
    return [w for w in seen.workers if w.ready and not w.deleting]


def serving_roles(seen: Observed) -> tuple[int, int]:
    """(prefill, decode) workers that serve."""
    living = serving(seen)
    return sum(w.role is Role.PREFILL for w in living), sum(w.role is Role.DECODE for w in living)


def is_stuck(seen: Observed, now: datetime) -> bool:
    """Has the target stood for the deadline, and do fewer workers serve than it names?"""
    if seen.decided_at is None or (now - seen.decided_at).total_seconds() < deadline_s(seen.limits):
        return False
    target = target_of(seen)
    return 0 < sum(serving_roles(seen)) < target.prefill + target.decode


def as_served(seen: Observed) -> Observed:
    """The same facts with what serves as the target; bounds allow it, and the budget keeps what the others hold."""
    living = serving(seen)
    counts = {p.name: sum(w.pool == p.name for w in living) for p in seen.limits.pools}
    prefill, decode = serving_roles(seen)
    held = sum(p.gpus * max(p.minimum - counts[p.name], 0) for p in seen.limits.pools)
    limits = replace(
        seen.limits,
        pools=tuple(
            replace(p, minimum=min(p.minimum, counts[p.name]), maximum=max_of(p.maximum, p.minimum, counts[p.name]))
            for p in seen.limits.pools
        ),
        budget_gpus=None if seen.limits.budget_gpus is None else seen.limits.budget_gpus - held,
    )
    return replace(seen, limits=limits, target=Target(counts, prefill, decode))


def max_of(maximum: int, minimum: int, count: int) -> int:
    """The most replicas that may serve: pods below the minimum stay where they are, ready or not."""
    return max(maximum - max(minimum - count, 0), count)


def as_decided(seen: Observed, wanted: Decision) -> Decision:
    """A decision on what serves, as one on the whole resource: nothing that serves is given up.

    Pods that do not serve stay where the bounds want them, and follow the direction of the flips: a pod that is not
    ready is flipped before one that is.
    """
    served, target = as_served(seen).target, target_of(seen)
    if served is None or wanted.action not in {Action.FLIP, Action.SCALE}:
        return hold_stuck(seen, wanted, target)
    if any(wanted.target.pools[name] < count for name, count in served.pools.items()):
        return hold_stuck(seen, wanted, target)
    counts = {p.name: max(wanted.target.pools[p.name], p.minimum) for p in seen.limits.pools}
    idle = sum(counts.values()) - sum(wanted.target.pools.values())
    to_prefill = wanted.target.prefill > served.prefill
    prefill = wanted.target.prefill + (idle if to_prefill else min(idle, max(target.prefill - served.prefill, 0)))
    chosen = Target(counts, prefill, sum(counts.values()) - prefill)
    if chosen == target or not is_legal(seen.limits, chosen):
        return hold_stuck(seen, wanted, target)
    return replace(wanted, reason="MoveStuck", target=chosen, message=f"{words(seen)}; {wanted.message}")


def hold_stuck(seen: Observed, wanted: Decision, target: Target) -> Decision:
    """Keep the target: what serves is enough, or nothing better is allowed."""
    message = f"{words(seen)}; of what serves: {wanted.reason}, {wanted.message}"
    return replace(wanted, action=Action.HOLD, reason="MoveStuck", target=target, message=message)


def words(seen: Observed) -> str:
    """`after 900 s not all pods serve: prefill 1 of 2, decode 2 of 2`."""
    target = target_of(seen)
    prefill, decode = serving_roles(seen)
    roles = f"prefill {prefill} of {target.prefill}, decode {decode} of {target.decode}"
    return f"more than {deadline_s(seen.limits):.0f} s after the move not all its pods serve: {roles}"
