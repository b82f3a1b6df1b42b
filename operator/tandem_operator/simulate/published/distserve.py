"""DistServe's simulator: its rules and constants (LLMServe/DistServe, simdistserve, commit 82831f1), one GPU a role.

Milliseconds throughout, as there. A step's time is linear in requests and context, so a run of steps of one batch is
an arithmetic series: it is jumped over, never stepped through.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf, sqrt
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tandem_operator.simulate.published.inputs import Arrivals

Line = tuple[float, float, float]
RAY_MS: Final = 2.0  # base/worker.py, add_ray_overhead: a step's overhead …
RAY_TOKEN_MS: Final = 0.0001  # … and that of each token of context
PIPE_MS: Final = 1.0  # estimators/time_estimator.py: per prefill and pipeline stage
LARGE_BATCH: Final = 95  # profile_data: from here on other constants
DECODE_TOKENS: Final = 50_000  # context tokens a decode step may hold (base/worker.py, _enter_decodes)


@dataclass(frozen=True, slots=True)
class Engine:
    """Fitted times on one A100: a + b·Σtokens + c·Σtokens² of a prefill, a + b·context + c·batch of a decode step."""

    prefill: Line
    small: Line
    large: Line

    def prefill_ms(self, lengths: Sequence[int]) -> float:
        """One batch of prompts."""
        a, b, c = self.prefill
        total = sum(lengths)
        return a + b * total + c * sum(n * n for n in lengths) + PIPE_MS + RAY_MS + RAY_TOKEN_MS * total

    def step_ms(self, batch: int, context: int) -> tuple[float, float]:
        """One decode step of requests with so much context in all, and what each further step costs more."""
        a, b, c = self.small if batch < LARGE_BATCH else self.large
        return a + b * (context + batch) + c * batch + RAY_MS + RAY_TOKEN_MS * context, (b + RAY_TOKEN_MS) * batch


# estimators/profile_data/profiler-a100-80g.{distserve,vllm}.json, facebook/opt-13b, tensor parallel 1.
DISTSERVE_OPT_13B: Final = Engine(
    (18.10254647486372, 0.1019122572698738, 7.122264314252114e-06),
    (19.934702624895458, 0.0006269356524350583, 0.03850697740828398),
    (7.1661889468253595, 0.0005798000403396046, 0.15831096191764046),
)
VLLM_OPT_13B: Final = Engine(
    (22.052204789310185, 0.14050923870128956, 8.076584822611088e-06),
    (23.475041008414784, 0.000592934466077393, 0.060726861260369455),
    (20.206356173691958, 0.0004907727036234946, 0.1200031385587413),
)
PREFILL_TOKENS: Final = 66_144  # profile_data/max_num_tokens.csv: opt-13b, tp 1, pp 1


@dataclass(slots=True, eq=False)
class Decoding:
    """A request that decodes."""

    index: int
    context: int
    left: int


@dataclass(frozen=True, slots=True)
class Latencies:
    """Per request, in milliseconds."""

    ttft: NDArray[np.float64]
    tpot: NDArray[np.float64]  # decoding time over output tokens (base/organize_data.py)


class Decoder:
    """The decoding requests of one worker, in the order of their queue."""

    def __init__(self, engine: Engine) -> None:
        """Nothing decodes yet."""
        self._engine = engine
        self.queue: deque[Decoding] = deque()

    def run(self, now: float, until: float) -> tuple[float, list[Decoding]]:
        """Steps of the present batch until one ends at or after `until`, or a request ends: (the time, who ended)."""
        batch = self._enter()
        context, size = sum(s.context for s in batch), len(batch)
        first, growth = self._engine.step_ms(size, context)
        # The batch is the same until a request ends or the token limit leaves one out; with some left out it rotates.
        fits = (DECODE_TOKENS - context - size) // size + 1
        most = 1 if self.queue else min(fits, *(s.left for s in batch))
        steps = min(most, _steps_to(first, growth, until - now))
        for sequence in batch:
            sequence.context += steps
            sequence.left -= steps
        self.queue.extend(s for s in batch if s.left)
        return now + steps * first + growth * (steps * (steps - 1) / 2), [s for s in batch if not s.left]

    def _enter(self) -> list[Decoding]:
        batch, room = [], DECODE_TOKENS
        while self.queue and self.queue[0].context + 1 <= room:
            room -= self.queue[0].context + 1
            batch.append(self.queue.popleft())
        return batch


def _steps_to(first: float, growth: float, gap: float) -> int:
    """The fewest steps, at least one, that take `gap` or longer."""
    if gap == inf:
        return 2**62
    middle = first - growth / 2
    steps = max(1, int((sqrt(middle * middle + 2 * growth * gap) - middle) / growth))
    while steps * first + growth * (steps * (steps - 1) / 2) < gap:
        steps += 1
    return steps


def _batch(at: Sequence[float], prompt: Sequence[int], first: int, now: float) -> list[int]:
    """Prompts from `first` on that have arrived and fit one prefill."""
    chosen, room = [], PREFILL_TOKENS
    for index in range(first, len(at)):
        if at[index] > now or prompt[index] > room:
            break
        room -= prompt[index]
        chosen.append(index)
    return chosen


def disaggregated(engine: Engine, arrivals: Arrivals) -> Latencies:
    """One prefill GPU, one decode GPU, KV transferred in no time (clusters/disagg.py)."""
    at, prompt, output = (arrivals.at * 1000).tolist(), arrivals.prompt.tolist(), arrivals.output.tolist()
    first_at, now = [0.0] * len(at), 0.0
    done = 0
    while done < len(at):
        now = max(now, at[done])
        batch = _batch(at, prompt, done, now)
        now += engine.prefill_ms([prompt[i] for i in batch])
        for i in batch:
            first_at[i] = now
        done += len(batch)
    decoder, now, joined, done_at = Decoder(engine), 0.0, 0, [0.0] * len(at)
    while joined < len(at) or decoder.queue:
        if not decoder.queue:
            now = max(now, first_at[joined])
        while joined < len(at) and first_at[joined] <= now:
            decoder.queue.append(Decoding(joined, prompt[joined], output[joined]))
            joined += 1
        now, ended = decoder.run(now, first_at[joined] if joined < len(at) else inf)
        for sequence in ended:
            done_at[sequence.index] = now
    return _latencies(at, first_at, done_at, output)


def colocated(engine: Engine, arrivals: Arrivals) -> Latencies:
    """One GPU that computes waiting prompts before it decodes (clusters/vllm.py)."""
    at, prompt, output = (arrivals.at * 1000).tolist(), arrivals.prompt.tolist(), arrivals.output.tolist()
    first_at, done_at = [0.0] * len(at), [0.0] * len(at)
    decoder, now, done = Decoder(engine), 0.0, 0
    while done < len(at) or decoder.queue:
        if not decoder.queue:
            now = max(now, at[done])
        batch = _batch(at, prompt, done, now)
        if batch:
            now += engine.prefill_ms([prompt[i] for i in batch])
            for i in batch:
                first_at[i] = now
                decoder.queue.append(Decoding(i, prompt[i], output[i]))
            done += len(batch)
            continue
        now, ended = decoder.run(now, at[done] if done < len(at) else inf)
        for sequence in ended:
            done_at[sequence.index] = now
    return _latencies(at, first_at, done_at, output)


def _latencies(at: list[float], first: list[float], done: list[float], output: list[int]) -> Latencies:
    first_at = np.array(first)
    return Latencies(first_at - np.array(at), (np.array(done) - first_at) / np.array(output))
