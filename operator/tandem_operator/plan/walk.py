"""Plans of two pools' counts and the flips between them, while every other pool's count stands."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tandem_operator.plan.candidates import prices_of
from tandem_operator.plan.gallop import downhill, first, last

if TYPE_CHECKING:
    from collections.abc import Callable

    from tandem_operator.plan.desk import Counts, Desk, Rating, Score
    from tandem_operator.plan.facts import Limits
    from tandem_operator.plan.search import Bar, Found, Region

CENT = 1e-9  # prices closer than this are equal


class Axis(NamedTuple):
    """One role's pool whose count is chosen; `pool` None: the role has no pool, and nothing is chosen."""

    pool: int | None
    low: int
    high: int
    fixed: int  # workers of the role's other pools
    minimum: int  # of the role

    def least(self, lent: int) -> int:
        """The least replicas with which the role keeps its minimum while it lends so many workers."""
        return max(self.low, self.minimum + lent - self.fixed)


class Fleet:
    """What replicas take: GPUs and price, and what the budgets leave."""

    def __init__(self, limits: Limits) -> None:
        """Read the pools' figures once."""
        self.gpus = [p.gpus for p in limits.pools]
        self._prices = prices_of(limits)
        self._devices = [p.device.name for p in limits.pools]
        self._budget, self._caps = limits.budget_gpus, limits.budget_per_device

    def cost(self, counts: Counts) -> float:
        """By the objective, an hour."""
        return sum(price * n for price, n in zip(self._prices, counts, strict=True))

    def used(self, counts: Counts, device: str | None = None) -> int:
        """GPUs, of one device or of all."""
        kinds = zip(self.gpus, counts, self._devices, strict=True)
        return sum(g * n for g, n, name in kinds if device in (None, name))

    def excess(self, counts: Counts, most: int | None) -> int:
        """GPUs beyond the budgets and `most`."""
        caps = [(None, cap) for cap in (self._budget, most) if cap is not None]
        return sum(max(self.used(counts, device) - cap, 0) for device, cap in [*caps, *self._caps.items()])

    def room(self, counts: Counts, index: int, most: int | None) -> int:
        """Replicas of one pool (which `counts` leaves out) that the budgets allow; negative: none."""
        caps: list[tuple[str | None, int]] = [(None, cap) for cap in (self._budget, most) if cap is not None]
        caps += [(d, cap) for d, cap in self._caps.items() if d == self._devices[index]]
        return min(((cap - self.used(counts, device)) // self.gpus[index] for device, cap in caps), default=1 << 30)


class Ground(NamedTuple):
    """What all walks of a search share; `away`: decode pools' workers that prefill now, negative the other way."""

    desk: Desk
    fleet: Fleet
    away: int
    flips: int
    at: Callable[[Counts, int, Region], Found]


class Walk:
    """Chooses the counts of one prefill pool (p) and one decode pool (d), and the flipped workers (f)."""

    def __init__(self, ground: Ground, region: Region, base: Counts, axes: tuple[Axis, Axis]) -> None:
        """Nothing is weighed yet."""
        self._ground, self._region, self._base = ground, region, base
        self._p, self._d = axes
        self._hints = axes[0].low, axes[1].low, ground.away  # what was found last, and its flips
        limits = ground.desk.limits
        low, high = self._p.minimum - self._p.fixed - self._p.high, self._d.fixed + self._d.high - self._d.minimum
        self._flips = max(low, ground.away - ground.flips), min(high, ground.away + ground.flips)
        if not limits.role_flips:
            self._flips = max(low, 0), min(high, 0)

    @property
    def least_cost(self) -> float:
        """No plan of this walk costs less."""
        return self._cost(self._p.low, self._d.low)

    def cheapest(self, bar: Bar) -> Found | None:
        """The cheapest plan that reaches the bar, then the one of least change, then the surest."""
        p, d = self._p.high, self._d.high
        low, high = self._flips
        away = self._ground.away
        least = first(lambda f: self._p.least(-f) <= p and bar.may_be_met(self._starts(p, d, f)), low, high, away)
        most = last(lambda f: self._d.least(f) <= d and bar.may_be_met(self._ends(p, d, f)), low, high, away)
        if least is None or most is None or least > most:
            return None
        known: dict[int, Found | None] = {}

        def height(f: int) -> tuple[float, ...]:
            if f not in known:
                known[f] = self._with_flips(f, bar)
            return rank(known[f])

        best = downhill(height, min(max(away, least), most), least, most)
        found = known[best]
        return None if found is None or found.excess else found

    def closest(self) -> Found | None:
        """The plan of highest attainment: as many workers as the budgets allow, and the split that serves best."""
        known: dict[int, Found | None] = {}

        def depth(p: int) -> tuple[float, ...]:
            if p not in known:
                d = min(self._d.high, self._room(p))
                known[p] = self._best_split(p, d) if d >= self._d.low else None
            found = known[p]
            return (1.0,) if found is None else tuple(-x for x in merits(found.rating))

        start = min(self._p.high, max(self._p.low, self._base_of_now()))
        if self._room(self._p.high) >= self._d.high:
            start = self._p.high
            depth(start)
            return known[start]
        return known[downhill(depth, start, self._p.low, self._p.high)]

    # --- one number of flips ---

    def _with_flips(self, f: int, bar: Bar) -> Found | None:
        """The cheapest plan of so many flipped workers."""
        p_axis, d_axis = self._p, self._d
        p_hint, d_hint, before = self._hints
        more = f - before  # workers that prefill in the place of p's own
        p = first(
            lambda n: bar.may_be_met(self._starts(n, d_axis.high, f)), p_axis.least(-f), p_axis.high, p_hint - more
        )
        if p is None:
            return None
        d = first(lambda n: bar.may_be_met(self._ends(p, n, f)), d_axis.least(f), d_axis.high, d_hint + more)
        if d is None:
            return None
        self._hints = p, d, f
        return self._beside(p, d, f, bar)

    def _beside(self, p: int, d: int, f: int, bar: Bar) -> Found | None:
        """From each side's least replicas up: both together have to reach the bar."""
        high, hint, best = self._d.high, d, None
        start = first(lambda n: self._reaches(bar, n, f, high), p, self._p.high, p)
        for n in range(self._p.high + 1 if start is None else start, self._p.high + 1):
            floor = max(d, self._filling(n))
            if floor > high:
                continue
            if best and self._is_beaten(best, n, floor):
                break
            least = first(partial(self._reaches, bar, n, f), floor, high, max(hint, floor))
            if least is not None:
                hint, found = least, self._ground.at(self._counts(n, least), self._prefill(n, f), self._region)
                best = found if best is None or rank(found) < rank(best) else best
        return best

    def _is_beaten(self, best: Found, p: int, d: int) -> bool:
        """Is even the least plan beside p dearer than the best, or as far beyond the budgets?"""
        if best.excess:
            return self._ground.fleet.excess(self._counts(p, d), self._region.most_gpus) >= best.excess
        return self._cost(p, d) > best.cost + CENT

    def _reaches(self, bar: Bar, p: int, f: int, d: int) -> bool:
        return bar.is_met(*self._ground.desk.sides(self._counts(p, d), self._prefill(p, f)))

    def _filling(self, p: int) -> int:
        """The least d with which the region's least GPUs are used."""
        if self._d.pool is None:
            return 0
        missing = self._region.least_gpus - self._ground.fleet.used(self._counts(p, 0))
        return -(-missing // self._ground.fleet.gpus[self._d.pool])

    # --- one pair of counts ---

    def _best_split(self, p: int, d: int) -> Found | None:
        """The split of highest attainment: uphill from where both sides are equally full, and equally late."""
        low = max(self._flips[0], self._p.minimum - self._p.fixed - p)
        high = min(self._flips[1], self._d.fixed + d - self._d.minimum)
        if low > high:
            return None

        def is_fuller(f: int) -> bool:  # decode is the fuller side
            return self._starts(p, d, f).utilisation <= self._ends(p, d, f).utilisation

        def is_later(f: int) -> bool:  # decode is the side that misses more
            return self._starts(p, d, f).stern >= self._ends(p, d, f).stern

        def depth(f: int) -> tuple[float, ...]:
            return tuple(-x for x in merits(self._rate(p, d, f)))

        starts = {first(crosses, low, high, self._ground.away) for crosses in (is_fuller, is_later)}
        tops = [downhill(depth, high if f is None else f, low, high) for f in starts]
        best = min(tops, key=lambda f: (depth(f), abs(f - self._ground.away)))
        return self._ground.at(self._counts(p, d), self._prefill(p, best), self._region)

    def _room(self, p: int) -> int:
        """The most d that the budgets allow beside p."""
        index = self._d.pool
        if index is None:
            return 0
        return self._ground.fleet.room(self._counts(p, 0), index, self._region.most_gpus)

    def _base_of_now(self) -> int:
        index = self._p.pool
        return 0 if index is None else self._region.low[index]

    def _counts(self, p: int, d: int) -> Counts:
        counts = list(self._base)
        for axis, n in ((self._p, p), (self._d, d)):
            if axis.pool is not None:
                counts[axis.pool] = n
        return tuple(counts)

    def _prefill(self, p: int, f: int) -> int:
        return self._p.fixed + p + f

    def _cost(self, p: int, d: int) -> float:
        return self._ground.fleet.cost(self._counts(p, d))

    def _rate(self, p: int, d: int, f: int) -> Rating:
        return self._ground.desk.rate(self._counts(p, d), self._prefill(p, f))

    def _starts(self, p: int, d: int, f: int) -> Score:
        desk = self._ground.desk
        return desk.prefill(desk.split(self._counts(p, d), self._prefill(p, f))[0])

    def _ends(self, p: int, d: int, f: int) -> Score:
        desk = self._ground.desk
        return desk.decode(desk.split(self._counts(p, d), self._prefill(p, f))[1])


def rank(found: Found | None) -> tuple[float, ...]:
    """What the cheapest plan minimises; no plan is the last."""
    if found is None:
        return (float("inf"),)
    return found.excess, round(found.cost, 6), found.change, -found.rating.sure


def merits(rating: Rating) -> tuple[float, float, float]:
    """What is climbed: sureness, then attainment, then less overload."""
    return rating.sure, rating.kind, -rating.overload
