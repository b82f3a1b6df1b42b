"""An offline oracle: the cheapest schedule of (prefill, decode) workers for a trace that is known to its end.

Per role and count, a quick model plays the trace and says in which interval how many requests miss their target; a
dynamic programme over intervals picks the counts whose GPU time, starts included, plus a price for each miss is least;
the price is raised until so few miss as are allowed. The schedule is then played in the real simulator, and the model's
targets are tightened or loosened until the cheapest schedule is found that keeps its promise there.

It is an upper bound for planners in this sense: it knows every arrival, orders replicas ahead, and is verified. It does
not flip roles, and is no proof of optimality: the search is over one strictness for both roles.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING

from tandem_operator.plan.policies.base import go

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime

    from tandem_operator.plan.facts import Decision, Observed
    from tandem_operator.plan.policies.profile import Profile
    from tandem_operator.simulate.scenarios import Arrival

PRICES = 40  # halvings of the price of a miss
DEAREST = 1e6  # GPU seconds for one miss: none is taken that a count within bounds avoids
LOOSE, STRICT = 2.5, 0.5  # shares of the targets between which the model's strictness is sought
ROUNDS = 5  # simulations of candidate schedules, with no miss allowed to the model
MISSES, MORE_ROUNDS = 0.004, 3  # ... and with so many: a few moments may be given up


@dataclass(frozen=True, slots=True)
class Grid:
    """Intervals of `step_s` over `seconds`, and the replica counts to choose from."""

    seconds: float
    step_s: float
    counts: tuple[int, ...]

    @property
    def intervals(self) -> int:
        """How many."""
        return int(self.seconds // self.step_s) + 1

    def of(self, at: float) -> int:
        """The interval of a time."""
        return min(int(at // self.step_s), self.intervals - 1)


@dataclass(frozen=True, slots=True)
class Costs:
    """GPU seconds of one worker in one interval, and of one worker's start."""

    interval: float
    start: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """Counts by interval, and how long before its interval a replica must be ordered."""

    prefill: tuple[int, ...]
    decode: tuple[int, ...]
    step_s: float
    lead_s: float

    def at(self, seconds: float) -> tuple[int, int]:
        """What to ask for now: the most that is needed from now until an order of now would be ready."""
        first, last = int(seconds // self.step_s), int((seconds + self.lead_s) // self.step_s)
        return most(self.prefill, first, last), most(self.decode, first, last)

    def policy(self, begin: datetime) -> Callable[[Observed, datetime], Decision]:
        """As a policy; `begin` is the simulated second 0."""

        def decide(seen: Observed, now: datetime) -> Decision:
            counts = self.at((now - begin).total_seconds())
            return go(seen, *counts, f"oracle {counts[0]}:{counts[1]}")

        return decide


def most(counts: Sequence[int], first: int, last: int) -> int:
    """The highest count of these intervals; the last one stands after the end."""
    return max(counts[first : last + 1] or counts[-1:])


def prefill_misses(trace: Iterable[Arrival], profile: Profile, target_s: float, grid: Grid, count: int) -> list[int]:
    """Requests by interval of arrival whose first token would come late from `count` workers, first come first served.

    One that would be late is not served: so an overload stays in its interval, and intervals can be chosen apart.
    """
    missed = [0] * grid.intervals
    free = [0.0] * count
    heapify(free)
    for arrival in trace:
        begin, service = max(free[0], arrival.at), profile.prompt_s(arrival.prompt)
        if begin + service - arrival.at > target_s:
            missed[grid.of(arrival.at)] += 1
        else:
            heapreplace(free, begin + service)
    return missed


def decode_misses(trace: Iterable[Arrival], profile: Profile, target_s: float, grid: Grid, count: int) -> list[int]:
    """Requests by interval that find `count` workers too full for the target, if they come right after their prefill.

    All workers share the running requests evenly; a step of the shared batch is a tick of a virtual clock, on which a
    request ends after its own tokens. One that would push the step beyond the target is not served, and counts.
    """
    missed = [0] * grid.intervals
    ends: list[tuple[float, float]] = []  # (virtual step at which it ends, its context)
    now, steps, context = 0.0, 0.0, 0.0
    for arrival in trace:
        while ends:
            step = profile.step_s(len(ends) / count, context / len(ends))
            left = max(ends[0][0] - steps, 0.0) * step
            if now + left > arrival.at:
                steps += (arrival.at - now) / step
                break
            now, steps = now + left, ends[0][0]
            context -= heappop(ends)[1]
        now = arrival.at
        own = arrival.prompt + arrival.output / 2
        batch, mean = (len(ends) + 1) / count, (context + own) / (len(ends) + 1)
        if profile.step_s(max(batch, 1.0), mean) > target_s or batch > profile.room(mean):
            missed[grid.of(arrival.at)] += arrival.output > 1
        elif arrival.output > 1:
            heappush(ends, (steps + arrival.output - 1, own))
            context += own
    return missed


def by_count(missed: Callable[[int], list[int]], counts: Sequence[int]) -> tuple[list[int], ...]:
    """Misses by count, ascending: beyond the first count that misses nothing, none does."""
    out: list[list[int]] = []
    for count in counts:
        is_enough = bool(out) and not any(out[-1])
        out.append(out[-1] if is_enough else missed(count))
    return tuple(out)


def cheapest(misses: Sequence[Sequence[int]], counts: Sequence[int], costs: Costs, price: float) -> tuple[int, ...]:
    """The counts by interval with the least GPU time plus `price` for each miss. misses[c][i]: with counts[c] in i.

    A dynamic programme over intervals; going up costs a start for each worker, going down nothing.
    """
    total = [n * costs.interval + price * m[0] for n, m in zip(counts, misses, strict=True)]
    back: list[list[int]] = []
    for i in range(1, len(misses[0])):
        came = [
            min(range(len(counts)), key=lambda b: total[b] + max(counts[c] - counts[b], 0) * costs.start)
            for c in range(len(counts))
        ]
        total = [
            total[b] + max(counts[c] - counts[b], 0) * costs.start + counts[c] * costs.interval + price * misses[c][i]
            for c, b in enumerate(came)
        ]
        back.append(came)
    best = min(range(len(counts)), key=lambda c: total[c])
    path = [best]
    for came in reversed(back):
        path.append(came[path[-1]])
    return tuple(counts[c] for c in reversed(path))


@dataclass(frozen=True, slots=True)
class Role:
    """One role's question: misses by count and interval, and what its workers cost."""

    misses: tuple[list[int], ...]
    counts: tuple[int, ...]
    costs: Costs

    def plan(self, price: float) -> tuple[int, ...]:
        """The cheapest counts at this price of a miss."""
        return cheapest(self.misses, self.counts, self.costs, price)

    def missed(self, plan: Sequence[int]) -> int:
        """Requests that this plan misses."""
        return sum(self.misses[self.counts.index(n)][i] for i, n in enumerate(plan))


def fewest_gpus(roles: Sequence[Role], allowed: float) -> list[tuple[int, ...]]:
    """Plans of all roles at the lowest common price of a miss that leaves at most `allowed` misses together."""
    low, high = 0.0, DEAREST
    for _ in range(PRICES):
        middle = (low * high) ** 0.5 if low > 0 else high / 2**10
        plans = [role.plan(middle) for role in roles]
        if sum(role.missed(plan) for role, plan in zip(roles, plans, strict=True)) <= allowed:
            high = middle
        else:
            low = middle
        if low > 0 and high / low < 1.05:
            break
    return [role.plan(high) for role in roles]


@dataclass(frozen=True, slots=True)
class Played:
    """What the simulator made of a schedule."""

    schedule: Schedule
    attainment: float
    gpu_seconds: float


def search(
    schedule_for: Callable[[float, float], Schedule], simulate: Callable[[Schedule], tuple[float, float]], wanted: float
) -> Played:
    """The cheapest schedule that attains `wanted` in the simulator; where none does, the one that attains most.

    `schedule_for(strictness, share of misses)` is the model's; every candidate is simulated.
    """
    played = bisect(lambda s: schedule_for(s, 0.0), simulate, wanted, ROUNDS)
    played += bisect(lambda s: schedule_for(s, MISSES), simulate, wanted, MORE_ROUNDS)
    good = [p for p in played if p.attainment >= wanted]
    return min(good, key=lambda p: p.gpu_seconds) if good else max(played, key=lambda p: p.attainment)


def bisect(
    schedule_for: Callable[[float], Schedule],
    simulate: Callable[[Schedule], tuple[float, float]],
    wanted: float,
    rounds: int,
) -> list[Played]:
    """Schedules of a strictness nearer and nearer to the loosest that attains `wanted`, as they were played."""
    loose, strict = LOOSE, STRICT
    played: list[Played] = []
    for number in range(rounds):
        strictness = 1.0 if number == 0 else (loose + strict) / 2
        schedule = schedule_for(strictness)
        played.append(Played(schedule, *simulate(schedule)))
        loose, strict = (loose, strictness) if played[-1].attainment >= wanted else (strictness, strict)
    return played
