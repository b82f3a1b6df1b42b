"""Which targets the resource allows: replicas by pool, and how many of all workers do which role."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from tandem_operator.plan.facts import Objective, Role, Target
from tandem_operator.plan.predict import Crew
from tandem_operator.plan.roofline import prior_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tandem_operator.plan.facts import Limits, ModelShape, PoolLimits

MOST_OPTIONS = 20_000  # many pools with wide steps: the steps are narrowed until this many are left


@dataclass(frozen=True, slots=True)
class Step:
    """How far one decision may go from the current target; pods."""

    up: int
    down: int
    flips: int


def gpus_of(limits: Limits, pools: Mapping[str, int]) -> int:
    """GPUs that these replicas take, over all pools."""
    return sum(p.gpus * pools.get(p.name, 0) for p in limits.pools)


def cost_of(limits: Limits, pools: Mapping[str, int]) -> float:
    """What these replicas cost by the objective, an hour."""
    return sum(price * pools.get(p.name, 0) for p, price in zip(limits.pools, prices_of(limits), strict=True))


def prices_of(limits: Limits) -> tuple[float, ...]:
    """One replica of each pool by the objective: price per hour, or watts.

    GPUs where any figure is unknown, so that a missing price never looks cheap.
    """
    by_power = limits.objective is Objective.POWER
    each = [p.device.watts if by_power else p.device.price_per_hour for p in limits.pools]
    if any(value <= 0 for value in each):
        return tuple(float(p.gpus) for p in limits.pools)
    return tuple(p.gpus * value for p, value in zip(limits.pools, each, strict=True))


def is_within_budget(limits: Limits, pools: Mapping[str, int]) -> bool:
    """Do these replicas keep to the GPU budget, in all and by accelerator?"""
    if limits.budget_gpus is not None and gpus_of(limits, pools) > limits.budget_gpus:
        return False
    used: dict[str, int] = {}
    for pool in limits.pools:
        used[pool.device.name] = used.get(pool.device.name, 0) + pool.gpus * pools.get(pool.name, 0)
    return all(used.get(name, 0) <= most for name, most in limits.budget_per_device.items())


def home_roles(limits: Limits, pools: Mapping[str, int]) -> tuple[int, int]:
    """(prefill, decode) workers if every worker does its pool's role."""

    def count(role: Role) -> int:
        return sum(pools.get(p.name, 0) for p in limits.pools if p.role is role)

    return count(Role.PREFILL), count(Role.DECODE)


def is_legal(limits: Limits, target: Target) -> bool:
    """Is the target inside every bound of the resource?"""
    return (
        set(target.pools) == {p.name for p in limits.pools}
        and all(p.minimum <= target.pools[p.name] <= p.maximum for p in limits.pools)
        and is_within_budget(limits, target.pools)
        and are_roles_legal(limits, target)
    )


def are_roles_legal(limits: Limits, target: Target) -> bool:
    """Do the roles add up, keep their minima, and follow the pools where flips are not allowed?"""
    home = home_roles(limits, target.pools)
    if not limits.role_flips or has_both(limits):
        is_home = (target.prefill, target.decode) == home
        return is_home and (has_both(limits) or (home[0] >= limits.min_prefill and home[1] >= limits.min_decode))
    enough = target.prefill >= limits.min_prefill and target.decode >= limits.min_decode
    return enough and target.prefill + target.decode == sum(home)


def has_both(limits: Limits) -> bool:
    """Is there a colocated pool? Its workers do both roles, and no ratio exists to choose."""
    return any(p.role is Role.BOTH for p in limits.pools)


def clamp(limits: Limits, pools: Mapping[str, int], prefill: int | None = None) -> Target | None:
    """The legal target nearest to these counts; None when the bounds contradict each other.

    Pools that are new start at `initial`, pools that are gone are dropped. Over budget, the pool furthest above its
    minimum gives first. Short of the roles' minima, pools grow while budget and maxima allow.
    """
    counts = {p.name: min(max(pools.get(p.name, p.initial), p.minimum), p.maximum) for p in limits.pools}
    while not is_within_budget(limits, counts):
        spare = [p for p in limits.pools if counts[p.name] > p.minimum and eases_budget(limits, counts, p)]
        if not spare:
            return None
        counts[max(spare, key=lambda p: counts[p.name] - p.minimum).name] -= 1
    while not meets_role_minima(limits, counts):
        grown = grow_one(limits, counts)
        if grown is None:
            return None
        counts = grown
    target = Target(counts, *split_roles(limits, counts, prefill))
    return target if is_legal(limits, target) else None


def eases_budget(limits: Limits, counts: Mapping[str, int], pool: PoolLimits) -> bool:
    """Would one replica less of this pool help a budget that is exceeded now?"""
    if limits.budget_gpus is not None and gpus_of(limits, counts) > limits.budget_gpus:
        return True
    device = pool.device.name
    used = sum(p.gpus * counts[p.name] for p in limits.pools if p.device.name == device)
    return device in limits.budget_per_device and used > limits.budget_per_device[device]


def meets_role_minima(limits: Limits, counts: Mapping[str, int]) -> bool:
    """Are there workers enough for both roles' minima?"""
    if has_both(limits):
        return True
    prefill, decode = home_roles(limits, counts)
    if limits.role_flips:
        return prefill + decode >= limits.min_prefill + limits.min_decode
    return prefill >= limits.min_prefill and decode >= limits.min_decode


def grow_one(limits: Limits, counts: Mapping[str, int]) -> dict[str, int] | None:
    """One more replica in a pool that still may grow and whose role is short; None if none may."""
    prefill, decode = home_roles(limits, counts)
    short = {Role.PREFILL} if prefill < limits.min_prefill else set()
    short |= {Role.DECODE} if decode < limits.min_decode else set()
    for pool in limits.pools:
        grown = {**counts, pool.name: counts[pool.name] + 1}
        wanted = limits.role_flips or pool.role in short
        if wanted and counts[pool.name] < pool.maximum and is_within_budget(limits, grown):
            return grown
    return None


def split_roles(limits: Limits, counts: Mapping[str, int], prefill: int | None) -> tuple[int, int]:
    """(prefill, decode): the wanted split within the minima where flips are allowed, else the pools' own roles."""
    home = home_roles(limits, counts)
    if not limits.role_flips or has_both(limits):
        return home
    total = sum(home)
    wanted = home[0] if prefill is None else prefill
    chosen = min(max(wanted, limits.min_prefill), total - limits.min_decode)
    return chosen, total - chosen


def candidates(limits: Limits, current: Target, step: Step | None = None) -> Iterator[Target]:
    """Every legal target within one step of the current one (`step` None: anywhere), the current one included."""
    for pools in pool_counts(limits, current, step):
        home = home_roles(limits, pools)
        total = sum(home)
        for prefill in splits(limits, total, home[0]):
            target = Target(pools, prefill, total - prefill)
            if step is not None and flips_between(limits, current, target) > step.flips:
                continue
            if is_legal(limits, target):
                yield target


def splits(limits: Limits, total: int, home: int) -> range:
    """The prefill counts to try."""
    if limits.role_flips:
        return range(limits.min_prefill, total - limits.min_decode + 1)
    return range(home, home + 1)


def pool_counts(limits: Limits, current: Target, step: Step | None) -> Iterator[dict[str, int]]:
    """Replica counts within bounds and step; the step narrows evenly where the product would explode."""
    up = step.up if step else max((p.maximum for p in limits.pools), default=0)
    down = step.down if step else up
    while True:
        ranges = [pool_range(p, current.pools.get(p.name, p.initial), up, down) for p in limits.pools]
        size = 1
        for values in ranges:
            size *= max(len(values), 1)
        if size <= MOST_OPTIONS or (up <= 1 and down <= 1):
            break
        up, down = max(up // 2, 1), max(down // 2, 1)
    names = [p.name for p in limits.pools]
    for counts in product(*ranges):
        yield dict(zip(names, counts, strict=True))


def pool_range(pool: PoolLimits, now: int, up: int, down: int) -> range:
    """Replicas of one pool within its bounds and one step."""
    return range(max(pool.minimum, now - down), min(pool.maximum, now + up) + 1)


def flips_between(limits: Limits, a: Target, b: Target) -> int:
    """Role changes of pods between two targets, beyond what new and removed replicas bring along."""
    return abs(away_from_home(limits, b) - away_from_home(limits, a))


def away_from_home(limits: Limits, target: Target) -> int:
    """Workers that do the other pool's role: positive when decode pools' workers prefill, negative the other way."""
    return target.prefill - home_roles(limits, target.pools)[0]


def change_between(limits: Limits, a: Target, b: Target) -> int:
    """How much is moved: a flip is seconds (1), a replica is minutes (10)."""
    replicas = sum(abs(b.pools.get(p.name, 0) - a.pools.get(p.name, 0)) for p in limits.pools)
    return flips_between(limits, a, b) + 10 * replicas


def crews(limits: Limits, target: Target, model: ModelShape) -> tuple[tuple[Crew, ...], tuple[Crew, ...]]:
    """(prefill, decode) workers by hardware: own role first; what a role lacks is flipped, last pools first."""
    left = {p.name: target.pools.get(p.name, 0) for p in limits.pools}
    by_role: dict[Role, list[Crew]] = {Role.PREFILL: [], Role.DECODE: []}
    wanted = {Role.PREFILL: target.prefill, Role.DECODE: target.decode}
    own = [(p, p.role) for p in limits.pools if p.role is not Role.BOTH]
    other = {Role.PREFILL: Role.DECODE, Role.DECODE: Role.PREFILL}
    for pool, role in [*own, *((p, other[role]) for p, role in reversed(own))]:
        count = min(left[pool.name], wanted[role])
        if count:
            by_role[role].append(Crew(prior_of(pool.device, pool.gpus, model, pool.spread), count, pool.name))
            left[pool.name] -= count
            wanted[role] -= count
    return tuple(by_role[Role.PREFILL]), tuple(by_role[Role.DECODE])
