"""Finds a plan among all that one step allows, without weighing them all: more workers never serve worse.

TTFT rests on the prefill crew alone and TPOT on the decode crew alone, and each gets better with every worker. So for
a number of flips each side's least replicas are found by galloping, and the price as a function of the flips falls
and then rises. Where a much slower device is flipped into a role this need not hold (the router gives it work that it
finishes late): then a cheaper plan may be missed, but none is taken that was not weighed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import inf, prod
from typing import TYPE_CHECKING, NamedTuple

from tandem_operator.plan.facts import Role, Target
from tandem_operator.plan.walk import CENT, Axis, Fleet, Ground, Walk, rank

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tandem_operator.plan.desk import Counts, Desk, Rating, Score

MOST_WALKED = 512  # combinations of the third and further pools' counts; beyond, their steps are narrowed evenly


class Bar(NamedTuple):
    """What a plan has to reach; each side alone has to reach it as well, since the other is at best perfect."""

    kind: float = 0.0
    sure: float = 0.0
    overload: float = inf

    def is_met(self, first: Score, then: Score) -> bool:
        """Does the plan of these two sides reach it?"""
        if first.stern * then.stern < self.sure:
            return False
        kind = first.kind * then.kind
        return kind >= max(self.kind, self.sure) and max(first.utilisation, then.utilisation) <= self.overload

    def may_be_met(self, side: Score) -> bool:
        """Could a plan with this side reach it? Only what the bar asks for is computed."""
        return (
            side.is_sure(self.sure)
            and (self.kind <= 0 or side.kind >= self.kind)
            and (self.overload == inf or side.utilisation <= self.overload)
        )


@dataclass(frozen=True, slots=True)
class Region:
    """Where to look: replicas by pool from `low` to `high`, GPUs in all, and a price that must be beaten."""

    low: Counts
    high: Counts
    least_gpus: int = 0
    most_gpus: int | None = None
    below_cost: float = inf


class Found(NamedTuple):
    """A plan: replicas by pool, prefill workers, its rating, price, change, and the GPUs that exceed a budget."""

    counts: Counts
    prefill: int
    rating: Rating
    cost: float
    change: int
    excess: int = 0


class Search:
    """Plans around `now` for the question that the desk answers; at most `flips` more or fewer flipped workers."""

    def __init__(self, desk: Desk, now: Target, flips: int) -> None:
        """Nothing is weighed yet."""
        pools = desk.limits.pools
        self._desk, self._fleet, limits = desk, Fleet(desk.limits), desk.limits
        self._pools = range(len(pools))
        self._names = [p.name for p in pools]
        self._of = {role: [i for i in self._pools if pools[i].role is role] for role in (Role.PREFILL, Role.DECODE)}
        self.now: Counts = tuple(now.pools.get(name, 0) for name in self._names)
        self._away = now.prefill - self._home(self.now)
        self._minima = {Role.PREFILL: limits.min_prefill, Role.DECODE: limits.min_decode}
        self._ground = Ground(desk, self._fleet, self._away, flips, self.at)

    def target(self, found: Found) -> Target:
        """The plan as a target."""
        counts = dict(zip(self._names, found.counts, strict=True))
        return Target(counts, found.prefill, sum(found.counts) - found.prefill)

    def cheapest(self, region: Region, bar: Bar) -> Found | None:
        """The cheapest plan that reaches the bar, then the one of least change, then the surest."""
        best: Found | None = None
        for walk in self._walks(region):
            if best is not None and walk.least_cost > best.cost + CENT:
                continue
            found = walk.cheapest(bar)
            if found and found.cost < region.below_cost - CENT and (best is None or rank(found) < rank(best)):
                best = found
        return best

    def closest(self, region: Region, most_overload: float = inf) -> Found | None:
        """The plan of highest attainment (per cent, less uncertainty, then plain), of least overload, of least price.

        Overload counts beyond 1 alone: GPUs that serve nobody better are not taken. `most_overload`: more is no use.
        """
        tops = [found for walk in self._walks(region) if (found := walk.closest())]
        if not tops:
            return None
        best = max(tops, key=merit)
        sure, kind, less = merit(best)[:3]
        return self.cheapest(region, Bar(kind - 0.005, sure - 0.005, min(0.005 - less, most_overload))) or best

    def at(self, counts: Counts, prefill: int, region: Region) -> Found:
        """Weigh one plan."""
        replicas = sum(abs(n - m) for n, m in zip(counts, self.now, strict=True))
        flips = abs(prefill - self._home(counts) - self._away)
        cost, excess = self._fleet.cost(counts), self._fleet.excess(counts, region.most_gpus)
        return Found(counts, prefill, self._desk.rate(counts, prefill), cost, flips + 10 * replicas, excess)

    def _home(self, counts: Counts) -> int:
        """Workers that prefill if every worker does its pool's role."""
        return sum(counts[i] for i in self._of[Role.PREFILL])

    def _walks(self, region: Region) -> Iterator[Walk]:
        """One walk for each combination of the counts of all pools but the widest of each role."""
        reach = [h - low for h, low in zip(region.high, region.low, strict=True)]
        widest = {role: max(of, key=lambda i: reach[i]) if of else None for role, of in self._of.items()}
        for base in product(*self._ranges(region, set(widest.values()), max(reach, default=0))):
            yield Walk(
                self._ground,
                region,
                base,
                (
                    self._axis(Role.PREFILL, widest[Role.PREFILL], region, base),
                    self._axis(Role.DECODE, widest[Role.DECODE], region, base),
                ),
            )

    def _axis(self, role: Role, index: int | None, region: Region, base: Counts) -> Axis:
        fixed = sum(base[i] for i in self._of[role] if i != index)
        low, high = (0, 0) if index is None else (region.low[index], region.high[index])
        return Axis(index, low, high, fixed, self._minima[role])

    def _ranges(self, region: Region, chosen: set[int | None], most: int) -> list[range]:
        """The counts of the pools that are walked; narrowed evenly around now where there would be too many."""
        bounds = list(zip(region.low, region.high, self.now, strict=True))
        while True:
            ranges = [
                range(1) if i in chosen else range(max(low, n - most), min(high, n + most) + 1)
                for i, (low, high, n) in enumerate(bounds)
            ]
            if prod(len(r) for r in ranges) <= MOST_WALKED or most <= 1:
                return ranges
            most //= 2


def merit(found: Found) -> tuple[float, float, float, float, int]:
    """What `closest` maximises."""
    rating = found.rating
    less = -max(round(rating.overload, 2), 1.0)
    return round(rating.sure, 2), round(rating.kind, 2), less, -round(found.cost, 6), -found.change
