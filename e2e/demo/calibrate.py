"""Loads and targets from what this machine's workers can do: measured first, never typed in.

A worker's speed differs between machines by factors, so the demo asks for its two figures (how many prompts a second
one prefill worker takes, how a decode worker's TPOT grows with its batch) and sizes the loads relative to them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

PROMPT_TOKENS = 384  # prompt-heavy: long prompts, few output tokens
PROMPT_OUTPUT = 6
CHAT_TOKENS = 24  # output-heavy: short prompts, long answers
CHAT_OUTPUT = 64

PREFILL_LOAD = 1.4  # of one prefill worker: it starves; of two: 0.7
TTFT_SLACK = 4.0  # target over the unloaded service time: a queue of about three prompts
DECODE_LOAD = 0.8  # of what one decode worker can ever emit: it starves; of two: 0.4


@dataclass(frozen=True, slots=True)
class Measured:
    """What the machine gave, unloaded."""

    prefill_s: float  # one long prompt through one prefill worker, saturated: seconds each
    ttft_s: float  # the same, alone
    tpot_alone_s: float  # batch of one on a decode worker
    batch: float  # a larger batch on one decode worker ...
    tpot_batch_s: float  # ... and its TPOT


@dataclass(frozen=True, slots=True)
class Loads:
    """What the demo drives: requests a second of both kinds, and the targets."""

    prompt_rate: float
    chat_rate: float
    ttft_ms: int
    tpot_ms: int


def size_loads(seen: Measured) -> Loads:
    """Rates that starve one worker of a role and suit two; targets between the two states.

    Decode: TPOT(N) = a + b·N at a batch of N, and N = rate·tokens·TPOT(N), so TPOT = a/(1 - rate·tokens·b): five a
    where one worker carries DECODE_LOAD, 1.7 times where two share it. The target is their geometric mean.
    """
    alone = seen.tpot_alone_s
    slope = max(seen.tpot_batch_s - alone, 0.02 * alone) / max(seen.batch - 1, 1)
    starved, shared = (alone / (1 - load) for load in (DECODE_LOAD, DECODE_LOAD / 2))
    return Loads(
        prompt_rate=PREFILL_LOAD / seen.prefill_s,
        chat_rate=DECODE_LOAD / (CHAT_OUTPUT * slope),
        ttft_ms=round(1000 * (TTFT_SLACK * seen.prefill_s + seen.ttft_s - seen.prefill_s)),
        tpot_ms=round(1000 * math.sqrt(starved * shared)),
    )
