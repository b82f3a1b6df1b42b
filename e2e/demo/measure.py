"""Two figures of this machine's workers, through the router, with nothing else running."""

from __future__ import annotations

import asyncio

from e2e.demo import calibrate
from e2e.demo.screen import note
from e2e.load import Measured
from e2e.load import measure as closed_loop

WARM_UP = 4  # requests that touch every worker before anything counts
BATCH = 48  # requests at once, over the two decode workers; kept up for two rounds, with newcomers among them


def measure(url: str, model: str) -> calibrate.Measured:
    """Long prompts (one prefill worker), then short chats at one and at many at once (two decode workers)."""
    run(url, model, calibrate.CHAT_TOKENS, 8, concurrency=2, n=WARM_UP, seed=90)
    alone = run(url, model, calibrate.PROMPT_TOKENS, 2, concurrency=1, n=4, seed=91)
    queued = run(url, model, calibrate.PROMPT_TOKENS, 2, concurrency=3, n=12, seed=92)
    chat = run(url, model, calibrate.CHAT_TOKENS, 32, concurrency=1, n=3, seed=93)
    many = run(url, model, calibrate.CHAT_TOKENS, calibrate.CHAT_OUTPUT, concurrency=BATCH, n=2 * BATCH, seed=94)
    seen = calibrate.Measured(
        prefill_s=1 / queued.per_second,
        ttft_s=alone.ttft_s,
        tpot_alone_s=chat.tpot_s or 0.0,
        batch=BATCH / 2,
        tpot_batch_s=many.tpot_s or 0.0,
    )
    note(
        f"a prompt of {queued.prompt_tokens:.0f} tokens takes a prefill worker {seen.prefill_s * 1000:,.0f} ms "
        f"(alone: TTFT {seen.ttft_s * 1000:,.0f} ms)"
    )
    note(
        f"a token takes a decode worker {seen.tpot_alone_s * 1000:,.0f} ms alone, "
        f"{seen.tpot_batch_s * 1000:,.0f} ms in a batch of {seen.batch:.0f}"
    )
    return seen


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
