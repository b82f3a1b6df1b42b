"""Bayesian linear regression with a handful of unknowns, in plain Python: the planner needs no array library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

Vector = tuple[float, ...]
Matrix = tuple[Vector, ...]


@dataclass(frozen=True, slots=True)
class Posterior:
    """Mean and covariance of the factors."""

    mean: Vector
    covariance: Matrix


def regress(prior: Vector, doubts: Vector, rows: Sequence[tuple[Vector, float, float]]) -> Posterior:
    """Posterior of factors k for y = k·x with Gaussian noise; factors are at least 0.

    prior, doubts: mean and standard deviation of each factor before any data. rows: (x, y, precision of y).
    A factor that would be negative is held at 0 and the rest is solved again, lowest first.
    """
    free = list(range(len(prior)))
    while True:
        precision = [[sum(w * x[i] * x[j] for x, _, w in rows) for j in free] for i in free]
        right = [sum(w * x[i] * y for x, y, w in rows) for i in free]
        for n, i in enumerate(free):
            precision[n][n] += doubts[i] ** -2
            right[n] += prior[i] * doubts[i] ** -2
        inverse = invert(precision)
        mean = [sum(a * b for a, b in zip(row, right, strict=True)) for row in inverse]
        worst = min(range(len(free)), key=lambda n: mean[n] / doubts[free[n]])
        if mean[worst] >= 0 or len(free) == 1:
            return spread(len(prior), free, mean, inverse, doubts)
        del free[worst]


def spread(size: int, free: Sequence[int], mean: Sequence[float], inverse: Matrix, doubts: Vector) -> Posterior:
    """Back to all factors; one that was held at 0 keeps its prior doubt halved, since the data spoke against it."""
    full = [0.0] * size
    covariance = [[0.0] * size for _ in range(size)]
    for i in range(size):
        covariance[i][i] = (doubts[i] / 2) ** 2
    for a, i in enumerate(free):
        full[i] = max(mean[a], 0.0)
        for b, j in enumerate(free):
            covariance[i][j] = inverse[a][b]
    return Posterior(tuple(full), tuple(tuple(row) for row in covariance))


def invert(matrix: Sequence[Sequence[float]]) -> Matrix:
    """The inverse of a small symmetric positive definite matrix (Gauss-Jordan after scaling to a unit diagonal)."""
    size = len(matrix)
    scale = [matrix[i][i] ** -0.5 for i in range(size)]
    work = [
        [matrix[i][j] * scale[i] * scale[j] for j in range(size)] + [float(i == j) for j in range(size)]
        for i in range(size)
    ]
    for column in range(size):
        pivot = max(range(column, size), key=lambda r: abs(work[r][column]))
        work[column], work[pivot] = work[pivot], work[column]
        head = work[column][column]
        work[column] = [value / head for value in work[column]]
        for row in range(size):
            if row != column:
                factor = work[row][column]
                work[row] = [v - factor * u for v, u in zip(work[row], work[column], strict=True)]
    return tuple(tuple(work[i][size + j] * scale[i] * scale[j] for j in range(size)) for i in range(size))
