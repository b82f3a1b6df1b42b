"""What a few measurements say about the model's level: robust regression of their logarithms with strong priors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Final

from tandem_operator.plan.linear import regress

LEVEL_DOUBT: Final = 0.3  # standard deviation of log(measured / model) before anything was measured
SLOPE_DOUBT: Final = 0.2  # the same a factor e in a feature: the model's shape is trusted more than its level
NOISE: Final = 0.15  # of one measurement
HUBER: Final = 1.0  # noises beyond which a measurement's pull no longer grows (Huber, Robust Statistics, 1981, 7.6)
ROUNDS: Final = 10
SHIFT: Final = 10.0  # `regress` keeps factors at 0 or above; slopes may be negative


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement: positive features (batch, prompt tokens, ...), what was measured, what the model said."""

    features: tuple[float, ...]
    measured: float
    modelled: float


@dataclass(frozen=True, slots=True)
class Correction:
    """measured = modelled · level · Π (feature / centre)^slope."""

    level: float
    slopes: tuple[float, ...]
    centre: tuple[float, ...]

    def apply(self, features: Sequence[float], modelled: float) -> float:
        """The corrected value, in the unit of `modelled`."""
        shape = sum(s * log(f / c) for s, f, c in zip(self.slopes, features, self.centre, strict=True))
        return modelled * self.level * exp(shape)


def correct(points: Sequence[Point]) -> Correction:
    """The correction that a few measurements support (at least one); without evidence for a slope it stays at 0."""
    size = len(points[0].features)
    centre = tuple(exp(sum(log(p.features[i]) for p in points) / len(points)) for i in range(size))
    rows = [
        ((1.0, *(log(f / c) for f, c in zip(p.features, centre, strict=True))), log(p.measured / p.modelled))
        for p in points
    ]
    doubts = (LEVEL_DOUBT, *(SLOPE_DOUBT for _ in range(size)))
    found: Sequence[float] = (0.0,) * (size + 1)
    weights = [1.0] * len(rows)
    for _ in range(ROUNDS):
        weighted = [(x, y + SHIFT * sum(x), w / NOISE**2) for (x, y), w in zip(rows, weights, strict=True)]
        found = [k - SHIFT for k in regress((SHIFT,) * (size + 1), doubts, weighted).mean]
        misses = [abs(y - sum(a * b for a, b in zip(found, x, strict=True))) / NOISE for x, y in rows]
        weights = [min(1.0, HUBER / max(m, 1e-9)) for m in misses]
    return Correction(exp(found[0]), tuple(found[1:]), centre)
