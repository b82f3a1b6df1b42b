"""What a plan would give: TTFT, TPOT and attainment of p prefill and d decode workers under a load."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import erfc, exp, inf, sqrt
from typing import TYPE_CHECKING, NamedTuple

from tandem_operator.plan.facts import Prediction
from tandem_operator.plan.queueing import POISSON, SERVICE_CV2, Line, length_atoms, peakedness

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tandem_operator.plan.calibrate import Fit
    from tandem_operator.plan.facts import Slo
    from tandem_operator.plan.queueing import Atoms, Delay
    from tandem_operator.plan.roofline import Parts, Prior

CHUNK_TOKENS = 256  # KV travels chunk by chunk beside the compute; only the last chunk is waited for
BEYOND_MS = 600_000.0  # ten minutes: a latency beyond this is "beyond every bound"
SHORTEST_S = 1e-4  # no latency is told shorter
HALVINGS = 20  # from there to ten minutes: within 0.0015 %
STEPS = 12  # Newton's, from below, on a concave function: more than enough
LEAST_S = 1e-9  # nothing takes no time at all
LEAST_SPREAD = 0.02  # of a request's mean step: what no formula knows


class Load(NamedTuple):
    """The demand: requests/s and mean lengths in tokens; `computed_tokens` is the prompt less its prefix hits."""

    arrival_rate: float
    prompt_tokens: float
    computed_tokens: float
    output_tokens: float
    waiting_tokens: float = 0.0  # prefill backlog now; priced as time to drain, never as infeasibility
    arrival_cv2: float | None = None  # squared coefficient of variation of the gaps; None: Poisson is assumed
    prompt_cv2: float | None = None  # of the prompts' lengths; None: not known
    lasts_s: float | None = None  # None: for ever; else such moments come and go ...
    usual: float = 0.0  # ... and this share of their work comes on the whole


@dataclass(frozen=True, slots=True)
class Crew:
    """Equal workers of one role; `pool` names where their costs were observed, '' where nothing says."""

    prior: Prior
    workers: int
    pool: str = ""


@dataclass(frozen=True, slots=True)
class Model:
    """The calibrated costs of both roles; `pessimism` lifts every cost by so many standard deviations."""

    prefill: Fit
    decode: Fit
    max_batch: float
    pessimism: float = 0.0
    ttft_factor: float = 1.0  # observed over predicted latency, where the formulas have proved too kind
    tpot_factor: float = 1.0
    prefill_of: Mapping[str, Fit] = field(default_factory=dict)  # pools whose workers were observed by themselves
    decode_of: Mapping[str, Fit] = field(default_factory=dict)

    def of(self, pool: str) -> Model:
        """The model with this pool's own fits, where it has any."""
        return replace(
            self, prefill=self.prefill_of.get(pool, self.prefill), decode=self.decode_of.get(pool, self.decode)
        )

    def prompt_s(self, prior: Prior, tokens: float) -> float:
        """Seconds of one prompt on one worker; the link is priced in where it is slower than the compute."""
        parts = prior.prefill_parts(tokens)
        return max(self._dearer(self.prefill, parts), tokens * prior.transfer_token_s)

    def step_s(self, prior: Prior, batch: float, context: float) -> float:
        """Seconds of one decode step."""
        return self._dearer(self.decode, prior.step_parts(batch, context))

    def _dearer(self, fit: Fit, parts: Parts) -> float:
        seconds = fit.seconds(parts)
        return seconds * (1 + self.pessimism * fit.doubt(parts)) if self.pessimism else seconds


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

    @property
    def is_idle(self) -> bool:
        """Is there no load to predict for?"""
        return self.prefill.latency_ms == self.decode.latency_ms == 0

    def prediction(self) -> Prediction:
        """As the status shows it; no load predicts nothing."""
        share = None if self.is_idle else round(self.attainment, 4)
        return Prediction(as_ms(self.prefill.latency_ms), as_ms(self.decode.latency_ms), share)


def as_ms(value: float | None) -> int | None:
    """Whole milliseconds; None for what diverges and for what no request would see (0)."""
    return round(value) if value else None


def predict(prefill: Sequence[Crew], decode: Sequence[Crew], load: Load, model: Model, slo: Slo) -> Forecast:
    """Forecast both sides of a plan under a load."""
    first, steps = predict_ttft(prefill, load, model, slo), predict_tpot(decode, load, model, slo)
    return together(first, steps, drain_s(prefill, load, model))


def together(prefill: Side, decode: Side, drain: float | None) -> Forecast:
    """A saturated decode side holds tickets back, and prefill waits for them: then TTFT diverges as well."""
    if decode.utilisation >= 1:
        prefill = Side(prefill.utilisation, None, 0.0)
    return Forecast(prefill, decode, drain)


# --- prefill ---


class PromptCost(NamedTuple):
    """One prompt of mean length on one worker, in seconds."""

    seconds: float
    fixed_s: float  # of it: the same for every length
    last_chunk_s: float  # the last chunk's KV over the link; earlier chunks travelled beside the compute


def prompt_cost(model: Model, prior: Prior, load: Load) -> PromptCost:
    """What a prompt of the load's mean length costs one worker."""
    seconds = max(model.prompt_s(prior, load.computed_tokens), LEAST_S)
    chunk = min(load.computed_tokens, CHUNK_TOKENS) * prior.transfer_token_s
    return PromptCost(seconds, min(model.prompt_s(prior, 0.0), seconds), chunk)


Share = tuple[float, PromptCost]  # of the requests, and what each costs


class PromptQueue(NamedTuple):
    """Prompts in front of prefill workers."""

    utilisation: float
    delay: Delay
    shares: tuple[Share, ...]


def queue_of(members: Sequence[tuple[int, PromptCost]], load: Load) -> PromptQueue | float:
    """The queue in front of these workers (count, cost), or the utilisation where it grows for ever.

    Different workers share the load in proportion to their speed (the router sends to the shortest backlog, which is
    the same as one queue for all: the least backlog ends first).
    """
    capacity = sum([n / cost.seconds for n, cost in members])
    rho = load.arrival_rate / capacity if capacity else inf
    passes_s = load.lasts_s if rho * load.usual < 1 else None
    if rho >= 1 and passes_s is None:
        return rho
    shares = tuple([(n / cost.seconds / capacity, cost) for n, cost in members if n])
    line = Line(sum([n for n, _ in members]), capacity, variability(load), service_cv2(shares, load))
    return PromptQueue(rho, line.steady(rho) if passes_s is None else line.passing(rho, load.usual, passes_s), shares)


def service_cv2(shares: Sequence[Share], load: Load) -> float:
    """Squared variation of prefill times: of the lengths, less the part of a prompt's time that no length changes."""
    if load.prompt_cv2 is None:
        return SERVICE_CV2
    return load.prompt_cv2 * sum([share * ((c.seconds - c.fixed_s) / c.seconds) ** 2 for share, c in shares])


def first_within(queue: PromptQueue | float, atoms: Atoms, seconds: float) -> float:
    """P(waiting + prefill + the last chunk's way over the link <= seconds), over the prompts' lengths."""
    if not isinstance(queue, PromptQueue):
        return 0.0
    total = 0.0
    for share, cost in queue.shares:
        left = seconds - cost.last_chunk_s - cost.fixed_s
        total += share * queue.delay.over(atoms, left, cost.seconds - cost.fixed_s)
    return total


def utilisation_of(found: PromptQueue | Batch | float) -> float:
    """Share of the capacity in use; beyond 1 it is the number itself."""
    return found if isinstance(found, float) else found.utilisation


def predict_ttft(crews: Sequence[Crew], load: Load, model: Model, slo: Slo) -> Side:
    """TTFT = waiting + prefill + the last chunk's way over the link, at the SLO's percentile."""
    if load.arrival_rate <= 0:
        return Side(0.0, 0.0, 1.0)
    members = [(c.workers, prompt_cost(model.of(c.pool), c.prior, load)) for c in crews if c.workers]
    return first_side([(1.0, queue_of(members, load), length_atoms(load.prompt_cv2))], model.ttft_factor, slo)


def first_side(queues: Sequence[tuple[float, PromptQueue | float, Atoms]], factor: float, slo: Slo) -> Side:
    """The side of the queues that some loads make, each with its share of the requests; percentile by bisection."""

    def within(seconds: float) -> float:
        return sum([share * first_within(queue, atoms, seconds / factor) for share, queue, atoms in queues])

    utilisation = sum([share * utilisation_of(queue) for share, queue, _ in queues])
    return Side(utilisation, quantile_ms(within, slo.percentile / 100), within(slo.ttft_ms / 1000))


def drain_s(crews: Sequence[Crew], load: Load, model: Model) -> float | None:
    """Seconds until the waiting prompt tokens are computed while new ones keep arriving; None: never."""
    if load.waiting_tokens <= 0:
        return 0.0
    size = max(load.computed_tokens, 1.0)
    capacity = sum(c.workers / model.of(c.pool).prompt_s(c.prior, size) for c in crews)
    spare = capacity - load.arrival_rate
    return None if spare <= 0 else load.waiting_tokens / size / spare


# --- decode ---


class StepCost(NamedTuple):
    """A decode step on one worker: `alone_s` for one request, `slope_s` more for each other one beside it."""

    alone_s: float
    slope_s: float
    room: float  # requests at once: KV memory or the engine's limit


def step_cost(model: Model, prior: Prior, load: Load) -> StepCost:
    """The line through a step of one request and a step of a full batch (the costs are linear in the batch)."""
    context = load.prompt_tokens + load.output_tokens / 2
    room = min(model.max_batch, prior.kv_room_tokens / max(context, 1.0))
    alone = max(model.step_s(prior, 1.0, context), LEAST_S)
    full = model.step_s(prior, max(room, 2.0), context)
    return StepCost(alone, max(full - alone, 0.0) / (max(room, 2.0) - 1.0), room)


def slower(cost: StepCost, model: Model, prior: Prior, batch: float, load: Load) -> StepCost:
    """The line one standard deviation higher, by the model's doubt of a step of this batch."""
    factor = 1 + model.decode.doubt(prior.step_parts(max(batch, 1.0), load.prompt_tokens + load.output_tokens / 2))
    return StepCost(cost.alone_s * factor, cost.slope_s * factor, cost.room)


class Batch(NamedTuple):
    """Requests that decode workers run side by side; each has `others` beside it on its worker."""

    utilisation: float
    others: float
    mean: float  # requests on a worker, over time
    spread: float  # the arrivals' variability over the number of workers
    shares: tuple[tuple[float, StepCost], ...]


def batch_of(members: Sequence[tuple[int, StepCost]], load: Load) -> Batch | float:
    """The batch at which throughput meets demand, or the utilisation where no batch does.

    A request sees more than the mean over time, itself included: N + z/W on one of W workers among which the router
    evens requests out, z the arrivals' peakedness (for one worker and Poisson arrivals N + 1, as arrivals see time
    averages). Fixed point: N on every worker with Σ workers·N/step(N + z/W) = λ·(osl-1).
    """
    members = [(n, cost) for n, cost in members if n]
    rate = load.arrival_rate * (load.output_tokens - 1)
    room = min([cost.room for _, cost in members], default=0.0)
    if room < 1:
        return inf
    limit = sum([n * room / (cost.alone_s + cost.slope_s * (room - 1)) for n, cost in members])
    if rate >= limit:
        return rate / limit
    workers, arrivals = sum([n for n, _ in members]), variability(load)
    others = min(max(others_at(members, rate, 1 - peakedness(arrivals) / workers), 0.0), room - 1)
    speeds = [n / (c.alone_s + c.slope_s * others) for n, c in members]
    total = sum(speeds)
    shares = tuple([(speed / total, c) for speed, (_, c) in zip(speeds, members, strict=True)])
    return Batch(rate / limit, others, rate / total, arrivals / workers, shares)


def others_at(members: Sequence[tuple[int, StepCost]], rate: float, less: float) -> float:
    """O with Σ workers·(o + less)/(alone + slope·o) = rate; one kind of worker in closed form, several by Newton.

    The sum is concave and rises, so that a tangent lies above it and each step from 0 stays below the solution.
    """
    if len(members) == 1:
        ((n, cost),) = members
        return (rate * cost.alone_s - n * less) / (n - rate * cost.slope_s)
    others = 0.0
    for _ in range(STEPS):
        value = slope = 0.0
        for n, cost in members:
            step = cost.alone_s + cost.slope_s * others
            value += n * (others + less) / step
            slope += n * (cost.alone_s - cost.slope_s * less) / step**2
        if abs(rate - value) <= 1e-9 * rate or (value > rate and not others):
            break
        others += (rate - value) / slope
    return others


def steps_within(batch: Batch | float, seconds: float) -> float:
    """P(one request's mean step is at most `seconds`), over the workers that may serve it."""
    if not isinstance(batch, Batch):
        return 0.0
    return sum([share * step_within(cost, batch, seconds) for share, cost in batch.shares])


def step_within(cost: StepCost, batch: Batch, seconds: float) -> float:
    """P(one request's mean step is at most `seconds`) on one kind of worker.

    Linear noise of the birth-death process: Var N = N·step(N)/step(0), times the arrivals' variability (their
    peakedness where stays are of equal length), divided by the number of workers, among which the router evens N out,
    and averaged over the request's life, whose length in relaxation times is x = step(0)/step(N): factor
    2(x - 1 + e^-x)/x².
    """
    if seconds < cost.alone_s:
        return 0.0
    mean = cost.alone_s + cost.slope_s * batch.others
    x = cost.alone_s / mean
    variance = batch.mean * batch.spread / x * 2 * (x - 1 + exp(-x)) / x**2
    return normal(seconds - mean, max(sqrt(variance) * cost.slope_s, LEAST_SPREAD * mean))


def normal(distance: float, deviation: float) -> float:
    """Φ(distance / deviation)."""
    return 0.5 * erfc(-distance / (deviation * 1.4142135623730951))


def predict_tpot(crews: Sequence[Crew], load: Load, model: Model, slo: Slo) -> Side:
    """TPOT from the batch at which throughput meets demand, with the batch's spread for the percentile."""
    if load.arrival_rate * (load.output_tokens - 1) <= 0:
        return Side(0.0, 0.0, 1.0)
    members = [(c.workers, step_cost(model.of(c.pool), c.prior, load)) for c in crews if c.workers]
    return steps_side([(1.0, batch_of(members, load))], model.tpot_factor, slo)


def steps_side(batches: Sequence[tuple[float, Batch | float]], factor: float, slo: Slo) -> Side:
    """The side of the batches that some loads make, each with its share of the requests; percentile by bisection."""

    def within(seconds: float) -> float:
        return sum([share * steps_within(batch, seconds / factor) for share, batch in batches])

    utilisation = sum([share * utilisation_of(batch) for share, batch in batches])
    latency = quantile_ms(within, slo.percentile / 100)
    heaviest = batches[-1][1]
    others = heaviest.others if isinstance(heaviest, Batch) else None
    return Side(utilisation, latency, within(slo.tpot_ms / 1000), others)


def variability(load: Load) -> float:
    """Squared coefficient of variation of the gaps between arrivals; Poisson's where it was not measured."""
    return POISSON if load.arrival_cv2 is None else load.arrival_cv2


def quantile_ms(within: Callable[[float], float], share: float) -> float | None:
    """The smallest t in ms with within(t seconds) >= share, by bisection of its logarithm; None beyond ten minutes."""
    low, high = SHORTEST_S, BEYOND_MS / 1000
    if within(high) < share:
        return None
    for _ in range(HALVINGS):
        middle = sqrt(low * high)
        low, high = (low, middle) if within(middle) >= share else (middle, high)
    return high * 1000
