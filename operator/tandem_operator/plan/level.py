"""The level of a cost against what was fitted, followed from window to window by a scalar Kalman filter."""

from __future__ import annotations

from itertools import pairwise
from math import exp, log, sqrt
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

NOISE = 0.01  # relative error of one window's mean that we never claim to beat; more of it is measured
DRIFT = 0.03  # the level's random walk from one window to the next, relative: a gain of about 0.45 at that noise
GATE = 3.0  # standard deviations beyond which an innovation is an outlier ...
SHIFTED = 3  # ... unless so many come one after the other on the same side: then the level has moved


class Level(NamedTuple):
    """Factor on a fitted cost, and one standard deviation of it as a share."""

    value: float
    doubt: float


STEADY = Level(1.0, 0.0)


def follow(ratios: Sequence[tuple[float, float]]) -> list[Level]:
    """The level after each of these (observed over fitted, share of a window that is new), oldest first.

    A local level model in the logarithm (Harvey 1989, section 2.2) with innovations gated at GATE standard
    deviations (normalised innovation squared, Bar-Shalom 2001, section 5.4); SHIFTED rejections in a row on one side
    are a shift, and the filter starts again from them.
    """
    values = [log(max(ratio, 1e-9)) for ratio, _ in ratios]
    noise = noise_of(values) ** 2
    level, variance, rejected = values[0], noise, 0
    path = [Level(exp(level), sqrt(variance))]
    for value, (_, share) in zip(values[1:], ratios[1:], strict=True):
        variance += DRIFT**2 * share
        innovation, spread = value - level, variance + noise / share
        if innovation**2 > GATE**2 * spread:
            side = 1 if innovation > 0 else -1
            rejected = rejected + side if rejected * side >= 0 else side
            if abs(rejected) < SHIFTED:
                path.append(path[-1])
                continue
            variance += innovation**2
            spread = variance + noise / share
        rejected = 0
        gain = variance / spread
        level += gain * innovation
        variance *= 1 - gain
        path.append(Level(exp(level), sqrt(variance)))
    return path


def noise_of(values: Sequence[float]) -> float:
    """Relative noise of one window, from neighbours' differences (a drift hardly shows in them); NOISE at least."""
    if len(values) < 4:
        return NOISE
    return max(NOISE, 1.4826 * median(abs(b - a) for a, b in pairwise(values)) / sqrt(2))
