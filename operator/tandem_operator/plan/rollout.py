"""Which pools may replace a worker now, so that prefill and decode move to a new revision as pairs. Pure.

A new revision serves only once it has a worker of each role, and an old one only as long as it has both. So both roles
go step by step together, a step of one role at a time, and no step takes the last pair while there is another way. What
may be away at once is counted over all pools: where it is one worker, the roles take turns.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from tandem_operator.plan.facts import Role

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


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


def pools_to_hold(
    members: Sequence[Member], lanes: Sequence[Lane], *, most: int, unhealthy: bool, waits: bool = False
) -> frozenset[str]:
    """The pools whose rollout must wait; none where nothing is to be replaced.

    `most` workers are away for the rollout at once, over all pools. A rollout whose new workers are unhealthy is held
    in every pool, until they are well or the spec is edited; while one `waits` for a node, no other worker goes.
    """
    old = {m.pool for m in members if not m.current}
    rolling = [lane for lane in lanes if lane.pool in old]
    if unhealthy:
        return frozenset(lane.pool for lane in rolling)
    # Between its old worker's end and its new one's start a pool is left as it is, and its role waits.
    between = {lane.pool for lane in lanes if sum(m.pool == lane.pool for m in members) < lane.desired}
    going = {lane.pool for lane in rolling if lane.pool in between and not lane.held}
    if not waits:
        taken = sum(may_lack(lane, members, goes=lane.pool in going) for lane in lanes)
        going |= fitting(beginners(rolling, between, members, lanes), members, most - taken)
    return frozenset(lane.pool for lane in rolling if lane.pool not in going)


def beginners(
    rolling: Sequence[Lane], between: Collection[str], members: Sequence[Member], lanes: Sequence[Lane]
) -> list[Lane]:
    """Pools whose turn it is to take a step, those of the role that is furthest behind first."""
    busy = {lane.role for lane in lanes if lane.pool in between}
    found = [lane for lane in rolling if lane.role not in busy and may_go(lane, rolling, members, lanes)]
    if not found and not busy and not any(m.current and not m.ready for m in members):
        found = forced(rolling, members, lanes)
    return sorted(found, key=lambda lane: begun(of_role(lane.role, members, lanes)))


def fitting(wanted: Sequence[Lane], members: Sequence[Member], room: int) -> set[str]:
    """Of these pools those whose steps fit, all together, in the workers that may still go."""
    found: set[str] = set()
    for lane in wanted:
        if (step := may_lack(lane, members, goes=True)) <= room:
            room -= step
            found.add(lane.pool)
    return found


def may_lack(lane: Lane, members: Sequence[Member], *, goes: bool) -> int:
    """Workers of a pool that are away, or that have yet to start; where it `goes`, those too that its step may take."""
    mine = [m for m in members if m.pool == lane.pool]
    away = max(lane.desired - len(mine), 0) + sum(m.current and not m.ready for m in mine)
    return max(away, min(lane.step, away + sum(not m.current for m in mine))) if goes else away


def steps(most: int, sizes: Mapping[str, tuple[str, int]]) -> dict[str, int]:
    """Most workers of each pool that go at once, of `most` in all: each role's part by its size, by pool (role, size).

    So each role keeps the same share of its workers. A role has a part of one at least; where these are more than
    `most`, roles take turns. Pools of a role do so always. A pool of several keeps one.
    """
    counts: dict[str, int] = {}
    for role, size in sizes.values():
        counts[role] = counts.get(role, 0) + size
    parts = {role: max(most * count // max(sum(counts.values()), 1), 1) for role, count in counts.items()}
    spare = max(most - sum(parts.values()), 0)
    for role in sorted(counts, key=lambda role: (-counts[role], role))[:spare]:
        parts[role] += 1
    return {pool: max(1, min(parts[role], size - 1)) for pool, (role, size) in sizes.items()}


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


def forced(rolling: Sequence[Lane], members: Sequence[Member], lanes: Sequence[Lane]) -> list[Lane]:
    """No step keeps a pair (a role has one worker): the roles that are furthest behind go all the same."""
    shares = {lane.role: begun(of_role(lane.role, members, lanes)) for lane in rolling}
    behind = {role for role, share in shares.items() if share == min(shares.values())}
    return [next(lane for lane in rolling if lane.role is role) for role in sorted(behind)]


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
