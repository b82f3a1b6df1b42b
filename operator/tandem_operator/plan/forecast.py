"""What is to come: arrival rate and lengths some seconds ahead, for what takes minutes (a replica's start).

Three forecasters run over the windows of metrics side by side; each is judged by what it would have said before, and
the one with the smallest past error speaks. Its past error is also the forecast's spread.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from operator import mul
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tandem_operator.plan.facts import Window

    Method = Callable[[Sequence[float], int], "list[float | None]"]

LEVEL_GAIN, TREND_GAIN = 0.5, 0.1  # Holt's alpha and beta: the common middle, not fitted to any trace
SMOOTH_GAIN = 0.1  # Brown's alpha, the lower of what is usual
LEAST_ERRORS = 4  # a forecaster with fewer past forecasts to be judged by does not speak
LEAST_PERIOD = 8  # windows; shorter waves than this are noise of the rate window itself
LEAST_CORRELATION = 0.6  # of the rate with itself one period before
PERIODS = 2  # a season must have been seen so often
CLEARLY = 0.9  # a richer forecaster must have at most this share of the simpler one's error


@dataclass(frozen=True, slots=True)
class Forecasted:
    """Demand at the horizon. `spread`: root mean square of the chosen method's past errors of the rate, requests/s."""

    rate: float
    prompt_tokens: float | None
    output_tokens: float | None
    spread: float
    method: str


@dataclass(frozen=True, slots=True)
class Judged:
    """One method's forecast and how wrong it has been at this horizon."""

    name: str
    value: float
    error: float  # root mean square; inf: no past forecast to judge by
    past: tuple[tuple[float, float], ...] = ()  # (said, came)


def forecast(history: Sequence[Window], horizon_s: float) -> Forecasted | None:
    """Demand `horizon_s` after the newest window; None where no window knows the arrival rate.

    Unknown rates between known ones repeat the last known one. Cost: O(n²) of a bounded history, for the season.
    """
    rates = filled([w.arrival_rate for w in history])
    if not rates:
        return None
    steps = steps_of(history, horizon_s)
    best = choose(rates, steps)
    return Forecasted(
        rate=max(best.value, 0.0),
        prompt_tokens=ahead([w.prompt_tokens for w in history], steps),
        output_tokens=ahead([w.output_tokens for w in history], steps),
        spread=best.error if best.error < float("inf") else 0.0,
        method=best.name,
    )


def demand(values: Sequence[float | None], history: Sequence[Window], horizon_s: float, share: float) -> float | None:
    """What to provide for over the horizon, so that at least `share` of the work comes in moments that are covered.

    The forecast, raised by the error that its method has not exceeded in the past for that share of the work: errors
    are weighted by the demand that came, since a busy moment that was not foreseen hurts all who came in it. Error
    upon peak is not provided for: no more than the history has seen, or the forecast itself says.
    """
    known = filled(values)
    if not known:
        return None
    steps = steps_of(history, horizon_s)
    best = choose(known, steps)
    errors = [(came - said, came) for said, came in best.past]
    most = max(*known, best.value)
    return max(min(best.value + margin(errors, share), most), 0.0)


def margin(errors: Sequence[tuple[float, float]], share: float) -> float:
    """The `share` quantile of (error, weight), at least 0; 0 for no errors."""
    left = (1 - share) * sum(weight for _, weight in errors)
    for error, weight in sorted(errors, reverse=True):
        left -= weight
        if left < 0:
            return max(error, 0.0)
    return 0.0


def steps_of(history: Sequence[Window], horizon_s: float) -> int:
    """The horizon in windows, by their mean distance; at least 1."""
    if len(history) < 2:
        return 1
    step = (history[-1].at - history[0].at).total_seconds() / (len(history) - 1)
    return max(round(horizon_s / step), 1) if step > 0 else 1


def filled(values: Sequence[float | None]) -> list[float]:
    """Known values; a gap repeats the one before it, a gap at the start is left out."""
    out: list[float] = []
    for value in values:
        if value is not None:
            out.append(value)
        elif out:
            out.append(out[-1])
    return out


def ahead(values: Sequence[float | None], steps: int) -> float | None:
    """A length at the horizon, at least 1 token; None where it was never known."""
    known = filled(values)
    return max(choose(known, steps).value, 1.0) if known else None


def choose(values: Sequence[float], steps: int) -> Judged:
    """The simplest method, unless a richer one has been clearly less wrong."""
    best = judge("constant", constant, values, steps)
    for name, method in (("smooth", smooth), ("linear", linear), ("seasonal", seasonal)):
        other = judge(name, method, values, steps)
        if other.error < CLEARLY * best.error:
            best = other
    return best


def judge(name: str, method: Method, values: Sequence[float], steps: int) -> Judged:
    """Let the method forecast from every past moment, and hold it against what came."""
    said = method(values, steps)
    past = tuple([(s, came) for s, came in zip(said[:-steps], values[steps:], strict=True) if s is not None])
    last = said[-1]
    if last is None or len(past) < LEAST_ERRORS:
        return Judged(name, values[-1] if last is None else last, float("inf"), past)
    return Judged(name, last, sqrt(sum([(s - came) ** 2 for s, came in past]) / len(past)), past)


def constant(values: Sequence[float], steps: int) -> list[float | None]:  # noqa: ARG001
    """What is, stays."""
    return list(values)


def smooth(values: Sequence[float], steps: int) -> list[float | None]:  # noqa: ARG001
    """Simple exponential smoothing (Brown 1956): a level behind noise."""
    level = values[0]
    out: list[float | None] = [level]
    for value in values[1:]:
        level += SMOOTH_GAIN * (value - level)
        out.append(level)
    return out


def linear(values: Sequence[float], steps: int) -> list[float | None]:
    """Holt's two-parameter exponential smoothing (Holt 1957): level and trend, extended over the horizon."""
    level, trend = values[0], 0.0
    out: list[float | None] = [level]
    for value in values[1:]:
        before = level
        level = LEVEL_GAIN * value + (1 - LEVEL_GAIN) * (level + trend)
        trend = TREND_GAIN * (level - before) + (1 - TREND_GAIN) * trend
        out.append(level + steps * trend)
    return out


def seasonal(values: Sequence[float], steps: int) -> list[float | None]:
    """What was one period before the horizon, moved by how the present differs from a period ago (seasonal naive).

    The period is found on the whole history, and so knows a little of what its own past forecasts are judged by.
    """
    period = period_of(values)
    if period is None:
        return [None] * len(values)
    out: list[float | None] = []
    for now in range(len(values)):
        then = now + steps - period * -(-steps // period)
        if then < 0 or now < period:
            out.append(None)
        else:
            out.append(values[then] + LEVEL_GAIN * (values[now] - values[now - period]))
    return out


def period_of(values: Sequence[float]) -> int | None:
    """The lag, in windows, at which the series resembles itself most; None where no lag is seen twice and clear."""
    count = len(values)
    middle = sum(values) / count
    around = [v - middle for v in values]
    energy = sum(v * v for v in around)
    if energy <= 0:
        return None
    best, lag = LEAST_CORRELATION, None
    for candidate in range(LEAST_PERIOD, count // PERIODS + 1):
        shared = sum(map(mul, around, around[candidate:]))
        correlation = shared / energy * count / (count - candidate)
        if correlation > best:
            best, lag = correlation, candidate
    return lag if lag is not None and dips_before(around, lag, energy) else None


def dips_before(around: Sequence[float], lag: int, energy: float) -> bool:
    """Does the correlation fall below 0 on the way to `lag`? A mere trend resembles itself at every small lag."""
    half = lag // 2
    shared: float = sum(map(mul, around, around[half:]))
    return shared / energy < 0


def burstiness(history: Sequence[Window]) -> float | None:
    """Squared coefficient of variation of the inter-arrival times, from counts; None for fewer than 4 windows apart.

    For a renewal process the index of dispersion of counts tends to Ca² (Cox and Lewis 1966, chapter 4; used so by
    Whitt 1982 and in QNA, Bell System Technical Journal 62, 1983). Counts are of windows that do not overlap; the
    variance is half the mean squared difference of neighbours (von Neumann 1941), so that a slow trend of the rate is
    not taken for bursts. 1: Poisson. 0: clockwork.
    """
    counts = [w.arrival_rate * w.seconds for w in apart(history) if w.arrival_rate is not None]
    return dispersion(counts)


def apart(history: Sequence[Window]) -> list[Window]:
    """The newest windows that do not overlap, oldest first."""
    out: list[Window] = []
    for window in reversed(history):
        if not out or (out[-1].at - window.at).total_seconds() >= out[-1].seconds:
            out.append(window)
    return out[::-1]


def dispersion(counts: Sequence[float]) -> float | None:
    """Index of dispersion of counts, variance over mean, by differences of neighbours; None for fewer than 4."""
    if len(counts) < LEAST_ERRORS or sum(counts) <= 0:
        return None
    differences = [b - a for a, b in pairwise(counts)]
    variance = sum(d * d for d in differences) / (2 * len(differences))
    return variance / (sum(counts) / len(counts))
