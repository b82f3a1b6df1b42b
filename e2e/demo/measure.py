"""What this machine's workers can do, through the router, with nothing else running."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from e2e.demo.calibrate import CHAT_OUTPUT, CHAT_TOKENS, PROMPT_TOKENS, Chats, Prompts
from e2e.demo.screen import note
from e2e.load import Measured
from e2e.load import measure as closed_loop

WARM_UP = 4  # requests that touch every worker before anything counts
AGREE = 0.15  # two rounds that differ by less are believed; the machine is shared
ROUNDS = 4
T = TypeVar("T")


class NotSteadyError(RuntimeError):
    """The machine's speed changed from round to round: a load cannot be sized on it."""


def warm_up(url: str, model: str) -> None:
    """Touch every worker."""
    run(url, model, CHAT_TOKENS, 8, concurrency=2, n=WARM_UP, seed=90)


def measure_prompts(url: str, model: str) -> Prompts:
    """Long prompts on the one prefill worker."""
    seen = steady(lambda at: prompts_once(url, model, 100 * at), lambda one: one.service_s)
    note(
        f"a prompt of {seen.tokens:.0f} tokens takes the prefill worker {seen.service_s * 1000:,.0f} ms "
        f"(alone: TTFT {seen.ttft_s * 1000:,.0f} ms)"
    )
    return seen


def prompts_once(url: str, model: str, seed: int) -> Prompts:
    """One round."""
    alone = run(url, model, PROMPT_TOKENS, 2, concurrency=1, n=3, seed=seed + 1)
    queued = run(url, model, PROMPT_TOKENS, 2, concurrency=3, n=12, seed=seed + 2)
    return Prompts(queued.prompt_tokens, 1 / queued.per_second, alone.ttft_s)


def measure_chats(url: str, model: str, seats: int, workers: int) -> Chats:
    """Long answers, as many at once as the decode workers have seats; newcomers take the seats of those who end."""
    full = seats * workers

    def once(at: int) -> Chats:
        kept_up = run(url, model, CHAT_TOKENS, CHAT_OUTPUT, concurrency=full, n=2 * full, seed=100 * at + 3)
        return Chats(seats, kept_up.tpot_s or 0.0)

    seen = steady(once, lambda one: one.tpot_s)
    note(f"a token takes a decode worker {seen.tpot_s * 1000:,.0f} ms in a full batch of {seats}")
    return seen


def steady(once: Callable[[int], T], figure: Callable[[T], float]) -> T:
    """The second of two rounds that agree. Raises NotSteadyError when none do."""
    figures: list[float] = []
    for at in range(1, ROUNDS + 1):
        seen = once(at)
        figures.append(figure(seen))
        if len(figures) > 1 and abs(figures[-1] - figures[-2]) <= AGREE * figures[-2]:
            return seen
    said = ", ".join(f"{one * 1000:,.0f}" for one in figures)
    raise NotSteadyError(
        f"{ROUNDS} rounds took {said} ms: something else uses this machine; try again when it is quiet"
    )


def run(url: str, model: str, prompt: int, output: int, *, concurrency: int, n: int, seed: int) -> Measured:
    """One closed loop."""
    return asyncio.run(
        closed_loop(
            url,
            model,
            prompt_tokens=prompt,
            output_tokens=output,
            concurrency=concurrency,
            n=n,
            seed=seed,
        )
    )
