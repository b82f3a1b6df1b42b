"""Workers that prefill and decode at once: chunks of prompts ride in the decode steps, and both pay for it.

The scheduler is that of chunked prefill (Sarathi-Serve, OSDI'24, section 4): every step carries the whole decode
batch, and at most one chunk of the prompt at the head of the queue. So, for one worker with λ prompts/s:

- a prompt adds its own compute W (linear layers and attention; the weights are read by the step anyway) to the
  steps that carry it, a share ρ = λ·W of all time;
- the other 1 - ρ is left for plain steps, so the mean step takes step(B) / (1 - ρ): what decode pays (TPOT), and
  more in short answers, which follow right behind their prompt's queue;
- a prompt of K chunks takes K steps and its own compute, S = K·step(B) + W: what prefill pays (TTFT), a queue
  that is λ·S busy;
- the batch follows from Little's law with the longer step, as on a decode worker.

With routed experts a chunk also reads those that the step's own batch did not touch: that reading is part of W, with
the batch as it would be beside the prompts' compute alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, exp, inf, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING

from tandem_operator.plan.facts import Slo
from tandem_operator.plan.predict import Crew, Forecast, Side, predict_tpot, predict_ttft, together
from tandem_operator.plan.roofline import slowed

if TYPE_CHECKING:
    from tandem_operator.plan.kinds import Kind
    from tandem_operator.plan.predict import Load, Model

CHUNKS = (256, 512, 1024, 2048, 4096, 8192)  # tokens; engines' defaults lie between 512 and 8192
NORMAL = NormalDist()
ONE_SIGMA_PERCENT = 84  # NORMAL.cdf(1), by which the batch's spread is read from a forecast


@dataclass(frozen=True, slots=True)
class Shared:
    """What one colocated worker does under its share of the load. Seconds; `batch` counts the request itself."""

    forecast: Forecast
    prompt_work_s: float  # W: what a prompt adds to its worker's time
    prefill_share: float  # ρ: share of the time that prompts add to steps
    plain_step_s: float  # step(B), a step without a chunk
    mean_step_s: float  # of a request: at least step(B) / (1 - ρ)
    longest_step_s: float  # step(B) and one chunk: the largest gap between two tokens
    prompt_s: float  # S: seconds from the first chunk to the first token
    batch: float
    chunks: int


def predict_shared(kind: Kind, workers: int, chunk_tokens: int, load: Load, model: Model, slo: Slo) -> Shared:
    """Forecast `workers` colocated workers that take prompts in chunks of `chunk_tokens`."""
    prior, rate = kind.prior, load.arrival_rate / workers
    chunks = ceil(load.computed_tokens / chunk_tokens)
    reading = experts_read_s(kind, workers, chunk_tokens, load, model, slo)
    work = sum(prior.prefill_parts(load.computed_tokens)[1:]) + reading
    share = rate * work
    if share >= 1:
        return Shared(overloaded(share), work, share, 0.0, inf, inf, inf, 0.0, chunks)
    stretched = slowed(prior, 1 / (1 - share))
    decode = predict_tpot([Crew(stretched, workers)], load, model, replace(slo, percentile=ONE_SIGMA_PERCENT))
    batch = 1 + (decode.batch or 0.0)
    context = load.prompt_tokens + load.output_tokens / 2
    plain = sum(prior.step_parts(batch, context))
    # One step is every prompt's fixed cost, the others grow with its length; its KV stays where it is.
    each = prior.token_s + (chunks - 1) * plain / load.computed_tokens
    sparse = replace(prior.sparse, expert_read_s=0.0) if prior.sparse else None
    whole = replace(prior, pass_s=plain + reading, token_s=each, transfer_token_s=0.0, sparse=sparse)
    running_s = plain * (1 - exp(-(decode.batch or 0.0)))  # a step under way ends first, if anything decodes
    prefill = after(running_s, Crew(whole, workers), load, model, slo)
    found = Shared(
        Forecast(prefill, decode, 0.0),
        work,
        share,
        plain,
        mean_step_s(plain, work, chunks, load, rate),
        plain + work / chunks,
        chunks * plain + work,
        batch,
        chunks,
    )
    return replace(found, forecast=together(prefill, with_interference(found, decode, rate, load, slo), 0.0))


def experts_read_s(kind: Kind, workers: int, chunk_tokens: int, load: Load, model: Model, slo: Slo) -> float:
    """Seconds in which a prompt's chunks read experts that the steps which carry them would not have touched."""
    sparse = kind.prior.sparse
    if sparse is None or not sparse.total:
        return 0.0
    share = load.arrival_rate / workers * sum(kind.prior.prefill_parts(load.computed_tokens)[1:])
    if share >= 1:
        return 0.0
    alone = slowed(kind.prior, 1 / (1 - share))
    decode = predict_tpot([Crew(alone, workers)], load, model, replace(slo, percentile=ONE_SIGMA_PERCENT))
    batch = decode.batch or 0.0
    whole, rest = divmod(load.computed_tokens, chunk_tokens)
    more = whole * sparse.reading_s(batch + chunk_tokens) + (sparse.reading_s(batch + rest) if rest else 0.0)
    return more - ceil(load.computed_tokens / chunk_tokens) * sparse.reading_s(batch)


def after(running_s: float, crew: Crew, load: Load, model: Model, slo: Slo) -> Side:
    """TTFT of prompts that begin when the step under way has ended."""
    left_ms = round(slo.ttft_ms - 1000 * running_s)
    side = predict_ttft([crew], load, model, replace(slo, ttft_ms=max(left_ms, 1)))
    latency = None if side.latency_ms is None else side.latency_ms + 1000 * running_s
    return replace(side, latency_ms=latency, within=side.within if left_ms > 0 else 0.0)


def overloaded(share: float) -> Forecast:
    """Prompts alone take more than all time."""
    return Forecast(Side(share, None, 0.0), Side(share, None, 0.0), None)


def with_interference(shared: Shared, decode: Side, rate: float, load: Load, slo: Slo) -> Side:
    """TPOT with the prompts that a request meets, added to the spread of the batch.

    A request of m steps needs m·step(B) of plain time and is held up by the prompts that arrive meanwhile, which
    hold it up for longer, and so on: a delay busy period, of variance λ·E[W²]·m·step(B)/(1 - ρ)³ (Conway, Maxwell
    and Miller, Theory of Scheduling, 1967, chapter 8). A step carries one chunk at most, which bounds the share φ of
    steps with a chunk: its variance is no more than φ·(1 - φ) (Bhatia and Davis, 2000).
    """
    steps = load.output_tokens - 1
    if decode.latency_ms is None or steps < 1:
        return decode
    batch_sigma = max(decode.latency_ms / 1000 - shared.plain_step_s / (1 - shared.prefill_share), 0.0)
    chunk_s = shared.prompt_work_s / shared.chunks
    busy = min(rate * shared.chunks * shared.mean_step_s, 1.0)
    squared = shared.prompt_work_s**2 * (1 + (load.prompt_cv2 or 0.0))
    met = rate * squared * shared.plain_step_s / steps / (1 - shared.prefill_share) ** 3
    sigma = sqrt(batch_sigma**2 + min(met, chunk_s**2 * busy * (1 - busy)))
    spread = NormalDist(shared.mean_step_s, max(sigma, 1e-9))
    latency = spread.inv_cdf(slo.percentile / 100)
    return Side(decode.utilisation, latency * 1000, spread.cdf(slo.tpot_ms / 1000), decode.batch)


def mean_step_s(plain: float, work: float, chunks: int, load: Load, rate: float) -> float:
    """Mean step of a request's life: step(B)/(1 - ρ), and the queue of prompts that it leaves behind it.

    A request begins to decode when its own prompt is done, with the prompts that came meanwhile still to do: as many
    as an M/G/1 queue holds, ρq + (1 + Cs²)·ρq²/(2(1 - ρq)) for ρq = λ·S (Pollaczek and Khinchine). It ends at any
    step, and of the steps only the share φ/ρq of that time is busy. The difference holds it up, and what arrives
    meanwhile, too. No step carries more than one chunk.
    """
    share, steps = rate * work, load.output_tokens - 1
    mean = plain / (1 - share)
    queue = rate * (chunks * plain + work)
    if queue >= 1 or steps < 1:
        return min(mean, plain + work / chunks)
    waiting = (1 + (load.prompt_cv2 or 0.0)) * queue**2 / (2 * (1 - queue))
    at_end = rate * chunks * mean / max(queue, 1e-12) * (queue / 2 + waiting)
    left_behind = work * max(queue + waiting - at_end, 0.0)
    return min(mean + left_behind / steps / (1 - share), plain + work / chunks)
