"""Which workers go when a pool shrinks: those whose role there are too many of, then the least loaded."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from tandem_operator.plan.facts import Role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tandem_operator.plan.facts import Target, WorkerState

GOES_FIRST = "-100"  # the ReplicaSet controller deletes the lowest cost first
COST = "controller.kubernetes.io/pod-deletion-cost"


def choose_victims(workers: Sequence[WorkerState], pool: str, target: Target) -> tuple[str, ...]:
    """Names of the pods that should go so that the pool has its target, and the roles come out right."""
    living = [worker for worker in workers if not worker.deleting]
    surplus = {
        Role.PREFILL: sum(w.role is Role.PREFILL for w in living) - target.prefill,
        Role.DECODE: sum(w.role is Role.DECODE for w in living) - target.decode,
        Role.BOTH: 0,
    }
    left = [worker for worker in living if worker.pool == pool]
    victims: list[str] = []
    for _ in range(len(left) - target.pools.get(pool, 0)):
        # An unknown load counts as the most: a pod that is not known to be idle is not the first to go.
        victim = min(left, key=lambda w: (w.ready, -surplus[w.role], inf if w.load is None else w.load, w.name))
        left.remove(victim)
        surplus[victim.role] -= 1
        victims.append(victim.name)
    return tuple(victims)
