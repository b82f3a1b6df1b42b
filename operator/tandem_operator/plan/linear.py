"""Bayesian linear regression with a handful of unknowns, in plain Python: the planner needs no array library."""

from __future__ import annotations

from dataclasses import dataclass
from operator import mul
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
    A factor that would be negative is held at 0 and the rest is solved again, lowest first. The covariance is that of
    all factors left free: a factor held at 0 is still tied to the others by what was seen.
    """
    size = len(prior)
    full = [[0.0] * size for _ in range(size)]
    right = [0.0] * size
    columns = tuple(zip(*(x for x, _, _ in rows), strict=True))
    values, precisions = [y for _, y, _ in rows], [w for _, _, w in rows]
    for i, column in enumerate(columns):
        weighed = list(map(mul, precisions, column))
        right[i] = sum(map(mul, weighed, values))
        for j in range(i + 1):
            full[i][j] = sum(map(mul, weighed, columns[j]))
    for i in range(size):
        full[i][i] += doubts[i] ** -2
        right[i] += prior[i] * doubts[i] ** -2
        for j in range(i):
            full[j][i] = full[i][j]
    covariance = invert(full)
    free, inverse = list(range(size)), covariance
    while True:
        mean = [sum(a * right[i] for a, i in zip(row, free, strict=True)) for row in inverse]
        worst = min(range(len(free)), key=lambda n: mean[n] / doubts[free[n]])
        if mean[worst] >= 0 or len(free) == 1:
            found = dict(zip(free, mean, strict=True))
            return Posterior(tuple(max(found.get(i, 0.0), 0.0) for i in range(size)), covariance)
        del free[worst]
        inverse = invert([[full[i][j] for j in free] for i in free])


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
