"""Waiting in front of several servers: how likely, how long, and by how much service itself varies."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import NormalDist

POISSON = 1.0  # squared coefficient of variation of the gaps between arrivals that nobody measured
SERVICE_CV2 = 0.5  # of prefill times that nobody measured: between fixed prompts (0) and exponential ones (1)
# Quantiles that stand for a length's distribution: fine where percentiles are asked for.
EDGES = (0.0, 0.2, 0.4, 0.6, 0.75, 0.85, 0.9, 0.94, 0.97, 0.99, 1.0)
NORMAL = NormalDist()

Atoms = tuple[tuple[float, float], ...]  # (multiple of the mean, probability)


@dataclass(frozen=True, slots=True)
class Delay:
    """Waiting time before service: P(W > t) = waits · exp(-t / mean_s)."""

    waits: float
    mean_s: float  # of those that wait

    def within(self, seconds: float) -> float:
        """P(W <= seconds)."""
        return 1.0 - self.waits * exp(-seconds / self.mean_s) if seconds >= 0 else 0.0


def delay_of(rho: float, servers: int, capacity: float, arrival_cv2: float, service_cv2: float) -> Delay:
    """The wait of GI/G/c below saturation (rho < 1), `capacity` in requests/s over all servers.

    Poisson arrivals: P(wait) = ρ^(√(2(c+1)) - 1) (Sakasegawa 1977), mean of those that wait
    (Ca² + Cs²)/2 · 1/(capacity·(1-ρ)) (Allen and Cunneen; Whitt, QNA, 1983). Other arrivals change both as in GI/G/1
    after Kraemer and Langenbach-Belz (1976): P(wait) by the factor 1 + (Ca²-1)(1-ρ)h, the mean by an exponent.
    """
    chance = rho ** (sqrt(2.0 * (servers + 1)) - 1.0)
    mean = (arrival_cv2 + service_cv2) / 2.0 / (capacity * (1.0 - rho))
    if arrival_cv2 == POISSON:
        return Delay(chance, mean)
    factor = 1.0 + (arrival_cv2 - 1.0) * (1.0 - rho) * likelihood(rho, arrival_cv2, service_cv2)
    waits = min(max(chance * factor, 0.0), 1.0)
    total = chance * mean * exp(-damping(rho, arrival_cv2, service_cv2))  # mean wait over all requests
    return Delay(waits, total / max(waits, 1e-9))


def likelihood(rho: float, ca2: float, cs2: float) -> float:
    """The h of Kraemer and Langenbach-Belz's probability of waiting."""
    if ca2 <= 1:
        return (1 + ca2 + rho * cs2) / (1 + rho * (cs2 - 1) + rho**2 * (4 * ca2 + cs2))
    return 4 * rho / (ca2 + rho**2 * (4 * ca2 + cs2))


def damping(rho: float, ca2: float, cs2: float) -> float:
    """The exponent of Kraemer and Langenbach-Belz's mean wait."""
    if ca2 < 1:
        return 2 * (1 - rho) * (1 - ca2) ** 2 / (3 * max(rho, 1e-9) * max(ca2 + cs2, 1e-9))
    return (1 - rho) * (ca2 - 1) / (ca2 + 4 * cs2)


def length_atoms(cv2: float | None) -> Atoms:
    """Multiples of the mean length with their probabilities; one of 1 where the spread is not known.

    Lognormal, σ² = ln(1 + cv²): each atom is the mean of its slice (partial expectation: Φ(z - σ)), so that the
    atoms' mean is 1.
    """
    if not cv2:
        return ((1.0, 1.0),)
    sigma = sqrt(log(1.0 + cv2))
    below = [0.0, *(NORMAL.cdf(NORMAL.inv_cdf(q) - sigma) for q in EDGES[1:-1]), 1.0]
    slices = zip(EDGES, EDGES[1:], below, below[1:], strict=False)
    return tuple(((high - low) / (b - a), b - a) for a, b, low, high in slices)


def peakedness(cv2: float) -> float:
    """Variance over mean of the number in service for arrivals of this variability: (1 + Ca²)/2 with exponential
    stays (heavy-traffic peakedness, Whitt 1984); fixed stays give up to Ca².
    """
    return (1.0 + cv2) / 2.0
