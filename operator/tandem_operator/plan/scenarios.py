"""Loads that may come, each with its share of the requests: what a percentile counts is requests, not moments.

The heaviest moment need not be in time for 99 % by itself if it brings a hundredth of the requests. So a plan is held
against all moments, each weighted by the requests that come in it: those that were, or those that a forecast says,
each with an error that it has made before.
"""

from __future__ import annotations

from math import sqrt
from operator import itemgetter, mul
from typing import TYPE_CHECKING, NamedTuple

from tandem_operator.plan.forecast import choose, filled, steps_of
from tandem_operator.plan.predict import Load
from tandem_operator.plan.queueing import POISSON, SERVICE_CV2

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tandem_operator.plan.facts import Window

Weighted = tuple[float, Load]  # share of the requests, or requests; what comes with them
# Shares of the work, lightest first, that are weighed as one load each: fine where it is heavy.
EDGES = (0.5, 0.8, 0.92, 0.98, 1.0)
ALIKE = 1.02  # work that differs by less is the same


class Demand(NamedTuple):
    """The loads of each role, lightest first; shares add up to 1."""

    prefill: tuple[Weighted, ...]
    decode: tuple[Weighted, ...]


def certain(load: Load) -> Demand:
    """One load that is sure to come."""
    return Demand(((1.0, load),), ((1.0, evened(load)),))


def evened(load: Load, busy: float = 1.0) -> Load:
    """What decode gets: prefill that is busy evens out how bunched prompts arrive (departures, Whitt, QNA, 1983)."""
    if load.arrival_cv2 is None or load.arrival_cv2 <= POISSON:
        return load
    return load._replace(arrival_cv2=POISSON + (1 - busy**2) * (load.arrival_cv2 - POISSON))


def prompt_work(load: Load) -> float:
    """Prompt tokens a second."""
    return load.arrival_rate * load.computed_tokens


def output_work(load: Load) -> float:
    """Answers' tokens a second."""
    return load.arrival_rate * load.output_tokens


class Came(NamedTuple):
    """What a window brought to each role."""

    prefill: Load
    decode: Load


def seen(came: Sequence[Came | None], now: Load) -> Demand:
    """The windows' loads as they were, weighted by requests; those without any say nothing."""
    prompts = [(one.prefill.arrival_rate, one.prefill) for one in came if one]
    answers = [(one.decode.arrival_rate, one.decode) for one in came if one]
    return demand_of(binned(prompts, prompt_work), binned(answers, output_work), now)


def came_in(window: Window, now: Load) -> Came | None:
    """What a window brought; prefix hits and what it does not know are those of now. None: it does not tell."""
    rate, prompt, output = window.arrival_rate, window.prompt_tokens, window.output_tokens
    if not rate or not prompt or not output:
        return None
    share = now.computed_tokens / now.prompt_tokens if now.prompt_tokens else 1.0
    variation = now.arrival_cv2 if window.arrival_cv2 is None else window.arrival_cv2
    lengths = now.prompt_cv2 if window.prompt_cv2 is None else window.prompt_cv2
    found = Load(rate, prompt, prompt * share, output, now.waiting_tokens, variation, lengths, window.seconds)
    return Came(found, evened(found, busy_share(window)))


def busy_share(window: Window) -> float:
    """Share of the prefill workers' time in use, 0..1; 1 where it is not known."""
    busy, workers = window.prefill.busy, window.prefill_workers
    return 1.0 if busy is None or not workers else min(busy / workers, 1.0)


def foreseen(history: Sequence[Window], came: Sequence[Came | None], now: Load, horizon_s: float) -> Demand:
    """What may come by then, for each role; both what came and what was said of it vary by chance."""
    prompts = errors_upon(history, [one and one.prefill for one in came], horizon_s, prompt_work)
    answers = errors_upon(history, [one and one.decode for one in came], horizon_s, output_work)
    return demand_of(binned(prompts, prompt_work, 2.0), binned(answers, output_work, 2.0), now)


def errors_upon(
    history: Sequence[Window], loads: Sequence[Load | None], horizon_s: float, work: Callable[[Load], float]
) -> list[Weighted]:
    """The loads that may come: the forecast of a role's work, with each error that its method has made before.

    Each has the lengths of the window in which the error was made. Error upon peak is not provided for: no more work
    than the history has seen, or the forecast itself says.
    """
    values = [
        work(load) if load else 0.0 if w.arrival_rate == 0 else None for w, load in zip(history, loads, strict=True)
    ]
    known = filled(values)
    if not known:
        return []
    steps = steps_of(history, horizon_s)
    best = choose(known, steps)
    most = max(*known, best.value)
    found = []
    for (said, came), one in zip(best.past, loads[len(loads) - len(best.past) :], strict=True):
        if one is not None:
            comes = min(max(best.value + came - said, 0.0), most)
            rate = one.arrival_rate * comes / work(one)
            found.append((rate, Load(rate, *one[1:])))
    return found


def binned(loads: Sequence[Weighted], work: Callable[[Load], float], times: float = 1.0) -> tuple[Weighted, ...]:
    """A few loads in the place of many: means of those between two of EDGES, in the order of their work.

    They are drawn together by what is chance (`times`: of so many independent figures), and those that then hardly
    differ are one.
    """
    heavy = [(work(load), weight, load) for weight, load in loads if weight > 0 and load.arrival_rate > 0]
    if not heavy:
        return ()
    heavy.sort(key=itemgetter(0))
    total = sum([weight for _, weight, _ in heavy])
    mean = sum([weight * value for value, weight, _ in heavy]) / total
    kept = without_luck(heavy, mean, times)
    bins: list[list[Weighted]] = []
    edges, below, first = iter(EDGES), 0.0, 0.0
    edge = next(edges)
    for value, weight, load in heavy:
        middle, below = below + weight / 2, below + weight
        is_next, now = middle > edge * total, mean + kept * (value - mean)
        while middle > edge * total and edge < 1:
            edge = next(edges)
        if not bins or (is_next and now > ALIKE * first):
            bins.append([])
            first = now
        bins[-1].append((weight, load))
    return tuple(drawn(part, work, mean, kept, total) for part in bins)


def drawn(part: Sequence[Weighted], work: Callable[[Load], float], mean: float, kept: float, total: float) -> Weighted:
    """The mean of a part of the loads, drawn towards the mean of all, with its share of them."""
    load = mean_of(part)
    comes = mean + kept * (work(load) - mean)
    rate = load.arrival_rate * comes / work(load)
    return sum([weight for weight, _ in part]) / total, load._replace(arrival_rate=rate, usual=min(mean / comes, 1.0))


def without_luck(loads: Sequence[tuple[float, float, Load]], mean: float, times: float) -> float:
    """The share of the loads' deviations from their mean that is not chance, which the queues' formulas count already.

    The work of n requests varies by (Ca² + Cs²)/n of its square. What the windows vary by beyond that is the load's
    own; deviations are scaled so that this is what they keep (Louis 1984). `loads`: work, weight and load.
    """
    total = sum([weight for _, weight, _ in loads])
    varies = sum([weight * (work - mean) ** 2 for work, weight, _ in loads]) / total
    chance = times * sum([weight * chance_of(load, work) for work, weight, load in loads]) / total
    return sqrt(max(1 - chance / varies, 0.0)) if varies > 0 else 0.0


def chance_of(load: Load, work: float) -> float:
    """Variance of a moment's work if the load itself is steady."""
    requests = load.arrival_rate * (load.lasts_s or 0.0)
    arrivals = POISSON if load.arrival_cv2 is None else load.arrival_cv2
    lengths = SERVICE_CV2 if load.prompt_cv2 is None else load.prompt_cv2
    return work**2 * (arrivals + lengths) / requests if requests else 0.0


def mean_of(loads: Sequence[Weighted]) -> Load:
    """The mean of weighted loads; lengths by request."""
    weights = [weight for weight, _ in loads]
    rates, prompts, computed, outputs, _, gaps, lengths, lasts, _ = zip(*[load for _, load in loads], strict=True)
    return Load(
        mean(weights, rates) or 0.0,
        mean(weights, prompts) or 0.0,
        mean(weights, computed) or 0.0,
        mean(weights, outputs) or 0.0,
        loads[0][1].waiting_tokens,
        mean(weights, gaps),
        mean(weights, lengths),
        mean(weights, lasts),
    )


def mean(weights: Sequence[float], values: Sequence[float | None]) -> float | None:
    """The mean of those weighted values that are known; None where none is."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        weights = [weight for weight, value in zip(weights, values, strict=True) if value is not None]
    total = sum(weights)
    return sum(map(mul, weights, known)) / total if total else None


def demand_of(prompts: tuple[Weighted, ...], answers: tuple[Weighted, ...], now: Load) -> Demand:
    """Both roles' loads; the load of now where nothing else is known."""
    return Demand(prompts or ((1.0, now),), answers or ((1.0, evened(now)),))
