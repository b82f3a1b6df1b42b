"""Which pools may replace a worker now, so that prefill and decode move to a new revision as pairs. Pure.

A new revision serves only once it has a worker of each role, and an old one only as long as it has both. So both roles
go step by step together, a step of one role at a time, and no step takes the last pair while there is another way.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from tandem_operator.plan.facts import Role

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Member:
    """A living worker; `current`: it is as the spec wants it, `revision`: it pairs with workers of the same one."""

    name: str
    pool: str
    role: Role
    ready: bool
    revision: str
    current: bool


@dataclass(frozen=True, slots=True)
class Lane:
    """A pool that is rolled: its own role, the workers that it should have, and whether its rollout is held now.

    `step`: most workers that go at once.
    """

    pool: str
    role: Role
    desired: int
    held: bool
    step: int = 1


def pools_to_hold(members: Sequence[Member], lanes: Sequence[Lane], *, unhealthy: bool) -> frozenset[str]:
    """The pools whose rollout must wait; none where nothing is to be replaced.

    A rollout whose new workers are unhealthy is held in every pool, until they are well or the spec is edited.
    """
    old = {m.pool for m in members if not m.current}
    rolling = [lane for lane in lanes if lane.pool in old]
    if unhealthy:
        return frozenset(lane.pool for lane in rolling)
    # Between its old worker's end and its new one's start a pool is left as it is, and its role waits.
    between = {lane.pool for lane in lanes if sum(m.pool == lane.pool for m in members) < lane.desired}
    busy = {lane.role for lane in lanes if lane.pool in between}
    going = {lane.pool for lane in rolling if lane.pool in between and not lane.held}
    going |= {lane.pool for lane in rolling if lane.role not in busy and may_go(lane, rolling, members, lanes)}
    if not going and not busy and not any(m.current and not m.ready for m in members):
        going = forced(rolling, members, lanes)
    return frozenset(lane.pool for lane in rolling if lane.pool not in going)


def may_go(lane: Lane, rolling: Sequence[Lane], members: Sequence[Member], lanes: Sequence[Lane]) -> bool:
    """Is it this pool's turn, with a pair left to serve meanwhile?"""
    mine = of_role(lane.role, members, lanes)
    if any(m.current and not m.ready for m in mine):
        return False  # one step of a role at a time
    if lane is not next(other for other in rolling if other.role is lane.role):
        return False  # one pool of a role at a time
    others = {other.role for other in rolling} - {lane.role}
    if any(begun(mine) > serving(of_role(role, members, lanes)) for role in others):
        return False  # the other role catches up first
    return keeps_pair(lane, members)


def forced(rolling: Sequence[Lane], members: Sequence[Member], lanes: Sequence[Lane]) -> set[str]:
    """No step keeps a pair (a role has one worker): the roles that are furthest behind go all the same."""
    shares = {lane.role: begun(of_role(lane.role, members, lanes)) for lane in rolling}
    behind = {role for role, share in shares.items() if share == min(shares.values())}
    return {next(lane.pool for lane in rolling if lane.role is role) for role in behind}


def keeps_pair(lane: Lane, members: Sequence[Member]) -> bool:
    """Is a pair left whichever of the pool's old workers go in one step?"""
    victims = [m for m in members if m.pool == lane.pool and not m.current]
    needed = sum(goes_with(serving, victims) for serving in by_revision(members))
    return needed > min(lane.step, len(victims))


def goes_with(serving: Mapping[Role, Sequence[Member]], victims: Sequence[Member]) -> float:
    """Fewest victims whose end leaves a revision without a pair; 0 where it has none, inf where none of them matter."""
    alone, prefill, decode = (
        float(len(found)) if all(m in victims for m in found) else inf
        for found in (serving.get(role, ()) for role in (Role.BOTH, Role.PREFILL, Role.DECODE))
    )
    return alone + min(prefill, decode)


def by_revision(members: Sequence[Member]) -> list[dict[Role, list[Member]]]:
    """Those that serve, by revision and role."""
    found: dict[str, dict[Role, list[Member]]] = {}
    for member in members:
        if member.ready:
            found.setdefault(member.revision, {}).setdefault(member.role, []).append(member)
    return list(found.values())


def has_pair(members: Sequence[Member]) -> bool:
    """Do workers of one revision serve in both roles?"""
    return any(goes_with(serving, members) for serving in by_revision(members))


def of_role(role: Role, members: Sequence[Member], lanes: Sequence[Lane]) -> list[Member]:
    """Workers of the pools of a role, whatever they do now: the pool is what is rolled."""
    home: Mapping[str, Role] = {lane.pool: lane.role for lane in lanes}
    return [m for m in members if home.get(m.pool) is role]


def begun(members: Sequence[Member]) -> float:
    """The share that is of the new revision, ready or not."""
    return sum(m.current for m in members) / max(len(members), 1)


def serving(members: Sequence[Member]) -> float:
    """The share that is of the new revision and ready."""
    return sum(m.current and m.ready for m in members) / max(len(members), 1)
