"""Calibration: observed busy time corrects the roofline's level and shape, and says how sure it is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from math import sqrt
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from tandem_operator.plan.facts import Role
from tandem_operator.plan.level import NOISE, STEADY, follow
from tandem_operator.plan.linear import regress

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tandem_operator.plan.facts import RoleUse, Window
    from tandem_operator.plan.level import Level
    from tandem_operator.plan.linear import Matrix, Vector
    from tandem_operator.plan.roofline import Parts, Prior

MIN_PROMPTS = 2.0  # fewer prompts in a window say more about luck than about the worker
MIN_STEPS = 10.0
SHAPE_DOUBT = 0.5  # each part of the prior (fixed, growing) may be off by this share of the observed level
OUTLIER_MADS = 4.0
NEIGHBOURS = 3  # windows to either side that an outlier is told from
HALF_LIFE_WINDOWS = 16.0
FADED = 0.03  # windows whose weight has fallen to this share say nothing more
DRIFTED = 0.15  # a level that moved by this share moved by more than its noise


class Point(NamedTuple):
    """One window's mean cost: the prior's parts in seconds, and the seconds that were observed."""

    parts: Parts
    seconds: float
    weight: float = 1.0  # independent windows that this one counts for: its share, faded by its age
    share: float = 1.0  # of it that no other window repeats


@dataclass(frozen=True, slots=True)
class Fit:
    """seconds = level · factors · parts, with the covariance of the factors and the doubt of the level.

    The factors (the shape) rest on `points` windows and change slowly; the level follows a drift within a few.
    """

    factors: Vector
    covariance: Matrix
    points: int
    level: Level = STEADY

    def seconds(self, parts: Parts) -> float:
        """The calibrated cost of what the prior gives as these parts."""
        return self.level.value * self.shape_s(parts)

    def shape_s(self, parts: Parts) -> float:
        """The cost before the level: the mean over the windows that the fit rests on."""
        (a, b, c), (x, y, z) = self.factors, parts
        return a * x + b * y + c * z

    def shapes_s(self, points: Sequence[Point]) -> list[float]:
        """The costs of many, before the level."""
        a, b, c = self.factors
        return [a * x + b * y + c * z for (x, y, z), *_ in points]

    def doubt(self, parts: Parts) -> float:
        """One standard deviation of `seconds`, as a share of it; grows with the distance from what was seen."""
        x, y, z = parts
        (xx, xy, xz), (_, yy, yz), (_, _, zz) = self.covariance
        variance = x * x * xx + y * y * yy + z * z * zz + 2 * (x * y * xy + x * z * xz + y * z * yz)
        return sqrt(max(variance, 0.0) / max(self.shape_s(parts), 1e-12) ** 2 + self.level.doubt**2)


# The prior taken at its word; used where nothing runs yet (`tandem plan`). Its doubt is 30 %.
UNCALIBRATED = Fit((1.0, 1.0, 1.0), ((0.09,) * 3,) * 3, 0)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Both roles' fits; None: no usable window yet, so nothing may be predicted for that role."""

    prefill: Fit | None
    decode: Fit | None
    computed_share: float = 1.0  # prompt tokens that prefill really computes; the rest came from prefix caches


def calibrate(prefill: Prior, decode: Prior, history: Sequence[Window]) -> Calibration:
    """Fit both roles to the history (windows before and after role changes alike: costs are per worker)."""
    share, evidence = computed_share(history), evidence_of(history)
    return Calibration(
        fit_role(Role.PREFILL, prefill, evidence, share), fit_role(Role.DECODE, decode, evidence, share), share
    )


def fit_role(role: Role, prior: Prior, evidence: Evidence, share: float, pool: str | None = None) -> Fit | None:
    """One role's fit, over all its workers or those of one pool; None where no window shows them at work."""
    points = []
    for window, weight in evidence.weighed:
        if (use := use_of(window, role, pool)) is None:
            continue
        found = prefill_point(prior, window, use, share) if role is Role.PREFILL else decode_point(prior, window, use)
        if found is not None:
            points.append(Point(*found, weight, evidence.new))
    return fit(points)


def use_of(window: Window, role: Role, pool: str | None) -> RoleUse | None:
    """What a role's workers did, or those of one pool."""
    if pool is None:
        return window.prefill if role is Role.PREFILL else window.decode
    return (window.prefill_of if role is Role.PREFILL else window.decode_of).get(pool)


def calibrate_pools(
    priors: Mapping[str, Prior], role: Role, history: Sequence[Window], share: float = 1.0
) -> dict[str, Fit]:
    """The fits of the pools whose workers of one role the metrics tell apart; no pool that they do not tell of.

    Mixed hardware needs them: a role's mean level says nothing about how far each device is from its data sheet.
    """
    evidence = evidence_of(history)
    fits = {name: fit_role(role, prior, evidence, share, name) for name, prior in priors.items()}
    return {name: found for name, found in fits.items() if found is not None}


class Evidence(NamedTuple):
    """The windows that still say something, oldest first, with the independent windows that each counts for."""

    weighed: list[tuple[Window, float]]
    new: float  # share of a window that no other repeats


def evidence_of(history: Sequence[Window]) -> Evidence:
    """Older windows fade: the load that they saw (lengths, batches, neighbours' noise) is less and less that of now."""
    if not history:
        return Evidence([], 1.0)
    newest, new = history[-1], overlap_of(history)
    half_life = HALF_LIFE_WINDOWS * max(newest.seconds, 1)
    weighed = [(w, new * 0.5 ** ((newest.at - w.at).total_seconds() / half_life)) for w in history]
    return Evidence([(w, weight) for w, weight in weighed if weight >= FADED * new], new)


def overlap_of(history: Sequence[Window]) -> float:
    """Share of a window that is new: windows of 30 s taken every 5 s repeat each other, each is a sixth of one."""
    gaps = [(b.at - a.at).total_seconds() for a, b in pairwise(history)]
    return min(1.0, max(median(gaps), 0.1) / max(history[-1].seconds, 1)) if gaps else 1.0


def computed_share(history: Sequence[Window]) -> float:
    """Prompt tokens computed by prefill workers, per prompt token that finished (prefix hits lower it).

    Only windows in which completions kept up with arrivals tell; 1 (no hits) where none does or the sign is weak.
    """
    shares = [
        w.prefill.tokens_rate / (w.request_rate * w.prompt_tokens)
        for w in history
        if w.prefill.tokens_rate is not None
        and w.request_rate
        and w.prompt_tokens
        and w.arrival_rate is not None
        and 0.9 * w.arrival_rate <= w.request_rate <= 1.1 * w.arrival_rate
    ]
    if len(shares) < 3 or median(shares) > 0.9:
        return 1.0
    return max(median(shares), 0.02)


def prefill_point(prior: Prior, seen: Window, use: RoleUse, share: float) -> tuple[Parts, float] | None:
    """Seconds per prompt: busy time over prompts, where prompts = tokens computed / tokens a prompt needs."""
    if use.busy is None or not use.tokens_rate or not seen.prompt_tokens or use.busy <= 0:
        return None
    tokens = max(seen.prompt_tokens * share, 1.0)
    if use.tokens_rate * seen.seconds / tokens < MIN_PROMPTS:
        return None
    return prior.prefill_parts(tokens), use.busy * tokens / use.tokens_rate


def decode_point(prior: Prior, seen: Window, use: RoleUse) -> tuple[Parts, float] | None:
    """Seconds per step at the window's mean batch (tokens per step)."""
    if use.busy is None or not use.steps_rate or not use.tokens_rate or use.busy <= 0:
        return None
    if use.steps_rate * seen.seconds < MIN_STEPS or seen.prompt_tokens is None:
        return None
    context = seen.prompt_tokens + (seen.output_tokens or 0.0) / 2
    return prior.step_parts(use.tokens_rate / use.steps_rate, context), use.busy / use.steps_rate


def fit(points: Sequence[Point]) -> Fit | None:
    """Least squares with the prior's shape, lifted to the observed level, as regulariser; outliers rejected.

    Bayesian linear regression in one factor a part: one operating point gives the level and keeps the prior's
    shape; several with different batch or length refine the shape. None when there is no point.
    """
    kept = without_spikes(points)
    if not kept:
        return None
    found = solve(kept)
    path = levels_of(found, kept)
    if max(x.value for x in path) > (1 + DRIFTED) * min(x.value for x in path):
        # A level that moved bends the shape: fit once more, every window lifted to the level of now.
        now = path[-1].value
        kept = [p._replace(seconds=p.seconds * now / x.value) for p, x in zip(kept, path, strict=True)]
        found = solve(kept)
        path = [levels_of(found, kept)[-1]._replace(doubt=path[-1].doubt)]
    return replace(found, level=path[-1])


def levels_of(found: Fit, points: Sequence[Point]) -> list[Level]:
    """Each window's level against the fitted shape, followed through time."""
    shapes = found.shapes_s(points)
    return follow([(p.seconds / max(shape, 1e-12), p.share) for p, shape in zip(points, shapes, strict=True)])


def ratios(points: Sequence[Point]) -> list[float]:
    """Observed over prior."""
    return [seconds / (x + y + z) for (x, y, z), seconds, *_ in points]


def without_spikes(points: Sequence[Point]) -> list[Point]:
    """Hampel's filter on the level (observed over prior): a point far from its neighbours in time is an outlier.

    Compared with neighbours and not with all: after a change of load the new level is news, not an outlier.
    """
    levels = ratios(points)
    least = OUTLIER_MADS * 2 * NOISE
    if not levels or max(levels) - min(levels) <= least * min(levels):
        return list(points)
    kept = []
    for i, point in enumerate(points):
        near = levels[max(i - NEIGHBOURS, 0) : i + NEIGHBOURS + 1]
        middle = median(near)
        off = abs(levels[i] - middle)
        if off <= least * middle or off <= OUTLIER_MADS * 1.4826 * median([abs(x - middle) for x in near]):
            kept.append(point)
    return kept


def solve(points: Sequence[Point]) -> Fit:
    """The posterior for `points` (at least one)."""
    level, seconds = median(ratios(points)), median([p.seconds for p in points])
    # Doubt in seconds, not in factors: data sheets are wrong about CPUs by orders of magnitude in any part.
    parts = zip(*[p.parts for p in points], strict=True)
    doubts = tuple(SHAPE_DOUBT * seconds / max(median(part), 1e-12) for part in parts)
    rows = [(p.parts, p.seconds, p.weight / (NOISE * p.seconds) ** 2) for p in points]
    found = regress((level,) * 3, doubts, rows)
    scatter = residual_scale(points, Fit(found.mean, found.covariance, len(points)))
    covariance = tuple(tuple(scatter * value for value in row) for row in found.covariance)
    return Fit(found.mean, covariance, len(points))


def residual_scale(points: Sequence[Point], fitted: Fit) -> float:
    """How much worse the points fit than NOISE says, as a factor on the variances; at least 1, at most 25."""
    misses = sum(
        [
            ((shape - seconds) / (NOISE * seconds)) ** 2 * weight
            for (_, seconds, weight, _), shape in zip(points, fitted.shapes_s(points), strict=True)
        ]
    )
    return min(max(misses / sum([p.weight for p in points]), 1.0), 25.0)
