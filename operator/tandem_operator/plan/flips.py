"""Which pods change role now, so that the target's roles are reached without a role falling below its minimum."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from tandem_operator.plan.facts import Role

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tandem_operator.plan.facts import PoolLimits, Target, WorkerState


@dataclass(frozen=True, slots=True)
class Flip:
    """One pod's label to patch."""

    pod: str
    from_: Role
    to: Role


def choose_flips(
    workers: Sequence[WorkerState],
    target: Target,
    min_prefill: int,
    min_decode: int,
    pools: Sequence[PoolLimits] = (),
) -> tuple[Flip, ...]:
    """The flips to do now; none when the roles are right, or when every further flip would starve a role.

    Pods of pools that give the growing role are returned home first (`pools` names each pool's role; without it no
    pod has a home), then the least loaded; a pod whose load is not known counts as the most loaded. A pod that is not
    ready is flipped before ready ones: that costs no serving worker. One direction a call, so repeated calls converge.
    """
    living = [w for w in workers if not w.deleting and w.role is not Role.BOTH]
    prefill = sum(w.role is Role.PREFILL for w in living)
    missing_prefill, missing_decode = target.prefill - prefill, target.decode - (len(living) - prefill)
    # A role keeps what it serves with until its own pods are ready: a surplus that still starts serves nobody.
    # Pods that are still to come start in their pool's role and may fill a gap; a surplus is certain.
    if missing_decode < 0 < missing_prefill:
        least = max(min_decode, target.decode)
        return flips_from(living, Role.DECODE, min(missing_prefill, -missing_decode), least, homes(pools))
    if missing_prefill < 0 < missing_decode:
        least = max(min_prefill, target.prefill)
        return flips_from(living, Role.PREFILL, min(missing_decode, -missing_prefill), least, homes(pools))
    return swap_home(living, min_prefill, min_decode, pools) if missing_prefill == missing_decode == 0 else ()


def swap_home(
    living: Sequence[WorkerState], min_prefill: int, min_decode: int, pools: Sequence[PoolLimits]
) -> tuple[Flip, ...]:
    """The first flip of two that bring workers home that do each other's roles on different devices; none otherwise.

    Counts are right then, but the plan was predicted with each device at home. All have to be ready: a pod that comes
    or goes will bring flips of its own. The next call sees one worker too many in a role, and returns the other.
    """
    home, devices = homes(pools), {p.name: p.device for p in pools}
    away = [w for w in living if home.get(w.pool) not in (None, w.role)]
    if not all(w.ready for w in living) or len({w.role for w in away}) < 2 or len({devices[w.pool] for w in away}) < 2:
        return ()
    for role, minimum in ((Role.DECODE, min_decode), (Role.PREFILL, min_prefill)):
        if flips := flips_from([w for w in living if w.role is role], role, 1, minimum, home):
            return flips
    return ()


def homes(pools: Sequence[PoolLimits]) -> dict[str, Role]:
    """Each pool's own role."""
    return {p.name: p.role for p in pools}


def flips_from(
    living: Sequence[WorkerState], role: Role, count: int, minimum: int, home: Mapping[str, Role]
) -> tuple[Flip, ...]:
    """Up to `count` pods of `role` to flip, leaving at least `minimum` ready workers in it at every instant."""
    to = Role.PREFILL if role is Role.DECODE else Role.DECODE
    spare = sum(w.ready and w.role is role for w in living) - minimum
    chosen: list[Flip] = []
    for worker in sorted((w for w in living if w.role is role), key=lambda w: order(w, to, home)):
        if len(chosen) >= count:
            break
        if worker.ready and spare <= 0:
            # Who comes home keeps its place while it waits: another in its stead would have to come home later.
            count -= home.get(worker.pool) is to
            continue
        spare -= worker.ready
        chosen.append(Flip(worker.name, role, to))
    return tuple(chosen)


def order(worker: WorkerState, to: Role, home: Mapping[str, Role]) -> tuple[bool, bool, float, str]:
    """Sort key: homecomers, then the unready, then the least loaded, then by name."""
    return home.get(worker.pool) is not to, worker.ready, inf if worker.load is None else worker.load, worker.name
