"""Waiting in front of several servers: how likely, how long, and by how much service itself varies."""

from __future__ import annotations

from math import exp, log, pi, sqrt
from statistics import NormalDist
from typing import NamedTuple

POISSON = 1.0  # squared coefficient of variation of the gaps between arrivals that nobody measured
SERVICE_CV2 = 0.5  # of prefill times that nobody measured: between fixed prompts (0) and exponential ones (1)
# Quantiles that stand for a length's distribution: fine where percentiles are asked for.
EDGES = (0.0, 0.25, 0.5, 0.65, 0.75, 0.82, 0.87, 0.91, 0.94, 0.96, 0.98, 0.99, 1.0)
NORMAL = NormalDist()
INNER = tuple(NORMAL.inv_cdf(q) for q in EDGES[1:-1])  # what lies between two of EDGES, in standard deviations

Atoms = tuple[tuple[float, float], ...]  # (multiple of the mean, probability)


class Delay(NamedTuple):
    """Waiting time before service: P(W > t) = waits · exp(-t / mean_s), behind what has piled up: 0 to `piled_s`."""

    waits: float
    mean_s: float  # of those that wait
    piled_s: float = 0.0  # at the end of an overload; it grows evenly, and all wait

    def within(self, seconds: float) -> float:
        """P(W <= seconds)."""
        if seconds < 0:
            return 0.0
        if self.piled_s > 0:
            return self._within_pile(seconds)
        if self.mean_s <= 0:  # neither arrivals nor service vary: nobody waits
            return 1.0
        return 1.0 - self.waits * exp(-seconds / self.mean_s)

    def over(self, atoms: Atoms, seconds: float, growing_s: float) -> float:
        """P(W <= what `seconds` leave beside service), over lengths of which the mean is served in `growing_s`."""
        if self.piled_s > 0 or self.mean_s <= 0:
            return sum([p * self.within(seconds - m * growing_s) for m, p in atoms])
        waits, mean = self.waits, self.mean_s
        return sum(
            [p * (1 - waits * exp((m * growing_s - seconds) / mean)) for m, p in atoms if m * growing_s <= seconds]
        )

    def _within_pile(self, seconds: float) -> float:
        """The mean of 1 - exp(-(seconds - u) / mean_s) over u from 0 to piled_s; 0 where u is more than seconds."""
        mean, most = self.mean_s, min(seconds, self.piled_s)
        if mean <= 0:
            return most / self.piled_s
        return (most - mean * (exp((most - seconds) / mean) - exp(-seconds / mean))) / self.piled_s


def delay_of(rho: float, servers: int, capacity: float, arrival_cv2: float, service_cv2: float) -> Delay:
    """The wait of GI/G/c below saturation (rho < 1), `capacity` in requests/s over all servers.

    Those that wait: mean (Ca² + Cs²)/2 · 1/(capacity·(1-ρ)) (Allen and Cunneen; Whitt, QNA, 1983). How many wait:
    ρ^(√(2(c+1)) - 1) for Poisson arrivals (Sakasegawa 1977). For others the exponent is divided by a power of the
    arrivals' peakedness z: by √z for many servers, where waiting depends on (1-ρ)√(c/z) alone (Halfin and Whitt 1981;
    Whitt 1992), and by z for one; z^(1/2 + 1/(2√c)) joins the two, and agrees with simulation in between.
    """
    bursts = peakedness(arrival_cv2) ** (0.5 + 0.5 / sqrt(servers))
    chance = rho ** ((sqrt(2.0 * (servers + 1)) - 1.0) / bursts)
    return Delay(chance, (arrival_cv2 + service_cv2) / 2.0 / (capacity * (1.0 - rho)))


class Line(NamedTuple):
    """Servers in a line; `capacity` in requests/s over all of them."""

    servers: int
    capacity: float
    arrival_cv2: float
    service_cv2: float

    def steady(self, rho: float) -> Delay:
        """The wait under a load that stays (rho < 1)."""
        return delay_of(rho, self.servers, self.capacity, self.arrival_cv2, self.service_cv2)

    def passing(self, rho: float, usual: float, lasts_s: float) -> Delay:
        """The wait in a moment that lasts so long and began as usual, with that share of its load (rho·usual < 1).

        Work in front of the servers is a Brownian motion held above 0 with variance ρ·(Ca² + Cs²)/capacity a second
        (heavy traffic): it spreads by √(2·variance·t/π) in the mean, and in an overload drifts up by ρ - 1 a second.
        """
        variance = rho * (self.arrival_cv2 + self.service_cv2) / self.capacity
        mean = self.steady(rho * usual).mean_s + sqrt(2 * variance * lasts_s / pi)
        if rho >= 1:
            return Delay(1.0, mean, (rho - 1.0) * lasts_s)
        steady = self.steady(rho)
        return Delay(steady.waits, min(steady.mean_s, mean))


def length_atoms(cv2: float | None) -> Atoms:
    """Multiples of the mean length with their probabilities; one of 1 where the spread is not known.

    Lognormal, σ² = ln(1 + cv²): each atom is the mean of its slice (partial expectation: Φ(z - σ)), so that the
    atoms' mean is 1.
    """
    if not cv2:
        return ((1.0, 1.0),)
    sigma = sqrt(log(1.0 + cv2))
    below = [0.0, *(NORMAL.cdf(z - sigma) for z in INNER), 1.0]
    slices = zip(EDGES, EDGES[1:], below, below[1:], strict=False)
    return tuple(((high - low) / (b - a), b - a) for a, b, low, high in slices)


def dispersion(each: float, squares: float, bins: float) -> float:
    """Index of dispersion of counts: unbiased variance over mean, of so many bins with this mean and mean square."""
    return max(squares - each * each, 0.0) * bins / (bins - 1) / each


def variation(count: float, total: float, squares: float) -> float:
    """Squared coefficient of variation of so many values (or so many a second), from their sums."""
    return max(squares * count / total**2 - 1.0, 0.0)


def peakedness(cv2: float) -> float:
    """Variance over mean of the number in service for arrivals of this variability: (1 + Ca²)/2 with exponential
    stays (heavy-traffic peakedness, Whitt 1984); fixed stays give up to Ca².
    """
    return (1.0 + cv2) / 2.0
