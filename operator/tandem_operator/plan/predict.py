"""What a plan would give: TTFT, TPOT and attainment of p prefill and d decode workers under a load."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING

from tandem_operator.plan.facts import Prediction

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tandem_operator.plan.calibrate import Fit
    from tandem_operator.plan.facts import Slo
    from tandem_operator.plan.roofline import Prior

CHUNK_TOKENS = 256  # KV travels chunk by chunk beside the compute; only the last chunk is waited for
VARIABILITY = 0.75  # (Ca² + Cs²)/2: Poisson arrivals (1), prompt lengths between fixed (0) and exponential (1)
BEYOND_MS = 600_000.0  # ten minutes: a latency beyond this is "beyond every bound"
HALVINGS = 40  # ten minutes to a nanosecond
NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Load:
    """The demand: requests/s and mean lengths in tokens; `computed_tokens` is the prompt less its prefix hits."""

    arrival_rate: float
    prompt_tokens: float
    computed_tokens: float
    output_tokens: float
    waiting_tokens: float = 0.0  # prefill backlog now; priced as time to drain, never as infeasibility


@dataclass(frozen=True, slots=True)
class Crew:
    """Equal workers of one role."""

    prior: Prior
    workers: int


@dataclass(frozen=True, slots=True)
class Model:
    """The calibrated costs of both roles; `pessimism` lifts every cost by so many standard deviations."""

    prefill: Fit
    decode: Fit
    max_batch: float
    pessimism: float = 0.0
    ttft_factor: float = 1.0  # observed over predicted latency, where the formulas have proved too kind
    tpot_factor: float = 1.0

    def prompt_s(self, prior: Prior, tokens: float) -> float:
        """Seconds of one prompt on one worker; the link is priced in where it is slower than the compute."""
        parts = prior.prefill_parts(tokens)
        compute = self.prefill.seconds(parts) * (1 + self.pessimism * self.prefill.doubt(parts))
        return max(compute, tokens * prior.transfer_token_s)

    def step_s(self, prior: Prior, batch: float, context: float) -> float:
        """Seconds of one decode step."""
        parts = prior.step_parts(batch, context)
        return self.decode.seconds(parts) * (1 + self.pessimism * self.decode.doubt(parts))


@dataclass(frozen=True, slots=True)
class Side:
    """One role's forecast: share of its capacity in use, latency in ms (None: diverges), P(within target)."""

    utilisation: float
    latency_ms: float | None
    within: float
    batch: float | None = None  # decode: mean requests that run on one worker


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a plan is expected to give."""

    prefill: Side
    decode: Side
    drain_s: float | None  # until the present prefill backlog is gone; None: never

    @property
    def attainment(self) -> float:
        """Share of requests that meet both targets (the two sides taken as independent)."""
        return self.prefill.within * self.decode.within

    @property
    def overload(self) -> float:
        """How far beyond its capacity the fuller side is; at most 1 is within."""
        return max(self.prefill.utilisation, self.decode.utilisation)

    def prediction(self) -> Prediction:
        """As the status shows it."""
        return Prediction(as_ms(self.prefill.latency_ms), as_ms(self.decode.latency_ms), round(self.attainment, 4))


def as_ms(value: float | None) -> int | None:
    """Whole milliseconds; None stays None."""
    return None if value is None else round(value)


def predict(prefill: Sequence[Crew], decode: Sequence[Crew], load: Load, model: Model, slo: Slo) -> Forecast:
    """Forecast both sides of a plan under a load."""
    first, steps = predict_ttft(prefill, load, model, slo), predict_tpot(decode, load, model, slo)
    return together(first, steps, drain_s(prefill, load, model))


def together(prefill: Side, decode: Side, drain: float | None) -> Forecast:
    """A saturated decode side holds tickets back, and prefill waits for them: then TTFT diverges as well."""
    if decode.utilisation >= 1:
        prefill = Side(prefill.utilisation, None, 0.0)
    return Forecast(prefill, decode, drain)


def predict_ttft(crews: Sequence[Crew], load: Load, model: Model, slo: Slo) -> Side:
    """TTFT = waiting + prefill + the last chunk's way over the link.

    Waiting of M/G/p after Allen and Cunneen with Sakasegawa's probability of waiting:
    P(W > t) = Pw·exp(-t/m), Pw = ρ^(√(2(p+1)) - 1), m = (Ca² + Cs²)/2 · S/(p·(1-ρ)).
    Different workers share the load in proportion to their speed (the router sends to the shortest backlog).
    """
    workers = sum(c.workers for c in crews)
    if load.arrival_rate <= 0:
        return Side(0.0, 0.0, 1.0)
    if workers == 0:
        return Side(inf, None, 0.0)
    services = [(c.workers, model.prompt_s(c.prior, load.computed_tokens), c.prior) for c in crews if c.workers]
    capacity = sum(n / s for n, s, _ in services)
    rho = load.arrival_rate / capacity
    if rho >= 1:
        return Side(rho, None, 0.0)
    waits = rho ** (sqrt(2 * (workers + 1)) - 1)
    mean_wait = VARIABILITY / (capacity * (1 - rho))
    shares = [(n / s / capacity, s + last_chunk_s(prior, load)) for n, s, prior in services]

    def within(seconds: float) -> float:
        left = [(share, seconds / model.ttft_factor - s) for share, s in shares]
        return float(sum(share * (1 - waits * exp(-wait / mean_wait)) for share, wait in left if wait >= 0))

    return Side(rho, quantile_ms(within, slo.percentile / 100), within(slo.ttft_ms / 1000))


def last_chunk_s(prior: Prior, load: Load) -> float:
    """Seconds that the last chunk's KV needs over the link; earlier chunks travelled beside the compute."""
    return min(load.computed_tokens, CHUNK_TOKENS) * prior.transfer_token_s


def predict_tpot(crews: Sequence[Crew], load: Load, model: Model, slo: Slo) -> Side:
    """TPOT from the batch at which throughput meets demand, with the batch's spread for the percentile.

    Fixed point: N on every worker with Σ workers·N/step(1+N) = λ·(osl-1) (an arriving request sees N others).
    Spread (linear noise of the birth-death process): Var N = N·step(N)/step(0), divided by the number of workers,
    among which the router evens N out, and averaged over the request's life, whose length in relaxation times is
    x = step(0)/step(N): factor 2(x - 1 + e^-x)/x².
    """
    crews = [c for c in crews if c.workers]
    tokens_rate = load.arrival_rate * max(load.output_tokens - 1, 0.0)
    if tokens_rate <= 0:
        return Side(0.0, 0.0, 1.0)
    if not crews:
        return Side(inf, None, 0.0)
    context = load.prompt_tokens + load.output_tokens / 2
    room = min(model.max_batch, min(c.prior.kv_room_tokens for c in crews) / max(context, 1.0))
    if room < 1:
        return Side(inf, None, 0.0)

    def throughput(others: float) -> float:
        return sum(c.workers * (others / model.step_s(c.prior, 1 + others, context)) for c in crews)

    limit = sum(c.workers * room / model.step_s(c.prior, room, context) for c in crews)
    if tokens_rate >= min(limit, throughput(room)):
        return Side(tokens_rate / min(limit, throughput(room)), None, 0.0)
    others = solve_increasing(throughput, tokens_rate, room)
    workers = sum(c.workers for c in crews)
    shares = [(c.workers * others / model.step_s(c.prior, 1 + others, context) / tokens_rate, c.prior) for c in crews]

    def within(seconds: float) -> float:
        mean_s = seconds / model.tpot_factor
        return sum(share * step_within(model, prior, others, context, workers, mean_s) for share, prior in shares)

    latency = quantile_ms(within, slo.percentile / 100)
    return Side(tokens_rate / min(limit, throughput(room)), latency, within(slo.tpot_ms / 1000), others)


def step_within(model: Model, prior: Prior, others: float, context: float, workers: int, seconds: float) -> float:
    """P(one request's mean step is at most `seconds`) on one of `workers` with `others` other requests on average."""
    mean = model.step_s(prior, 1 + others, context)
    base = min(model.step_s(prior, 1.0, context), mean)  # far from what was seen, a pessimistic base may exceed it
    slope = (mean - base) / others if others > 0 else 0.0
    x = max(min(base / mean, 1.0), 1e-3)
    spread = sqrt(max(others, 1e-9) / workers / x * 2 * (x - 1 + exp(-x)) / x**2) * slope
    if seconds < base:
        return 0.0
    return NORMAL.cdf((seconds - mean) / max(spread, 0.02 * mean))


def drain_s(crews: Sequence[Crew], load: Load, model: Model) -> float | None:
    """Seconds until the waiting prompt tokens are computed while new ones keep arriving; None: never."""
    if load.waiting_tokens <= 0:
        return 0.0
    size = max(load.computed_tokens, 1.0)
    capacity = sum(c.workers / model.prompt_s(c.prior, size) for c in crews)
    spare = capacity - load.arrival_rate
    return None if spare <= 0 else load.waiting_tokens / size / spare


def quantile_ms(within: Callable[[float], float], share: float) -> float | None:
    """The smallest t in ms with within(t seconds) >= share, by bisection; None beyond ten minutes."""
    low, high = 0.0, BEYOND_MS / 1000
    if within(high) < share:
        return None
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if within(middle) >= share else (middle, high)
    return high * 1000


def solve_increasing(function: Callable[[float], float], value: float, high: float) -> float:
    """X in [0, high] with function(x) = value, for an increasing function."""
    low = 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if function(middle) >= value else (middle, high)
    return (low + high) / 2
