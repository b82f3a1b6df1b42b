"""Loads and targets from what this machine's workers can do: measured first, never typed in.

A worker's speed differs between machines by factors, so the demo asks for it and sizes the loads relative to it. Both
loads ask the same of the starved role: OVERLOAD of what one worker can do, so that its queue grows for as long as it
is alone, and half of that of each of two, so that their queues stay short.
"""

from __future__ import annotations

from dataclasses import dataclass

PROMPT_TOKENS = 192  # prompt-heavy: long prompts, few output tokens
PROMPT_OUTPUT = 6
CHAT_TOKENS = 8  # output-heavy: short prompts, long answers
CHAT_OUTPUT = 40

OVERLOAD = 1.35  # of one worker; of two: 0.68
TTFT_SLACK = 4.4  # target over the unloaded service time: a queue of about three prompts
TPOT_SLACK = 1.2  # target over the TPOT of a full batch: a short wait for a seat


@dataclass(frozen=True, slots=True)
class Prompts:
    """What one prefill worker gave for long prompts."""

    tokens: float  # of a prompt, as the model counts them
    service_s: float  # saturated: seconds each
    ttft_s: float  # alone


@dataclass(frozen=True, slots=True)
class Chats:
    """What one decode worker gave for long answers."""

    seats: int  # requests in its batch, kept full
    tpot_s: float  # of a request in the full batch


@dataclass(frozen=True, slots=True)
class Sized:
    """Requests a second to drive, and the target of the role that they starve."""

    rate: float
    target_ms: int


def size_prompts(seen: Prompts) -> Sized:
    """The prompt-heavy load."""
    unloaded = seen.ttft_s - seen.service_s
    return Sized(OVERLOAD / seen.service_s, round(1000 * (TTFT_SLACK * seen.service_s + unloaded)))


def size_chats(seen: Chats) -> Sized:
    """The output-heavy load. A full batch ends `seats` answers every (CHAT_OUTPUT - 1) steps."""
    capacity = seen.seats / ((CHAT_OUTPUT - 1) * seen.tpot_s)
    return Sized(OVERLOAD * capacity, round(1000 * TPOT_SLACK * seen.tpot_s))
