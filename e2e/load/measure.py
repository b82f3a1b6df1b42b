"""Closed loop, for calibration: a fixed number of requests open at a time."""

from __future__ import annotations

import asyncio
import statistics
from dataclasses import dataclass

from e2e.load.addresses import checked
from e2e.load.client import Client, new_session
from e2e.load.plan import LoadPlan, body
from e2e.load.result import Result, Status


@dataclass(frozen=True, slots=True)
class Measured:
    """What `n` requests gave at a concurrency: medians in seconds, and requests finished a second.

    `tpot_s` is None with a single output token.
    """

    concurrency: int
    n: int
    ttft_s: float
    tpot_s: float | None
    per_second: float
    prompt_tokens: float
    results: tuple[Result, ...]


class CalibrationError(RuntimeError):
    """A calibration request failed: there is nothing to measure."""


async def measure(
    url: str,
    model: str,
    *,
    prompt_tokens: int,
    output_tokens: int,
    concurrency: int,
    n: int,
    seed: int = 1,
    chat: bool = True,
    timeout_s: float = 120.0,
) -> Measured:
    """Send `n` requests, `concurrency` at a time. Raises CalibrationError as soon as one fails."""
    if n < 1 or concurrency < 1:
        raise ValueError(f"n is {n} and concurrency {concurrency}: both must be at least 1")
    # The plan's times are not used: the loop is closed.
    plan = LoadPlan(url, model, 1.0, 1.0, prompt_tokens, output_tokens, seed, chat=chat)
    loop = asyncio.get_running_loop()
    results: list[Result] = []
    numbers = iter(range(n))
    async with new_session() as session:
        start = loop.time()
        client = Client(session, checked(url), timeout_s, lambda: loop.time() - start)

        async def lane() -> None:
            for number in numbers:
                result = Result(number, loop.time() - start)
                await client.send(body(plan, number), result)
                if result.status is not Status.OK:
                    raise CalibrationError(f"request {number} to {url}: {result.error}")
                results.append(result)

        try:
            async with asyncio.TaskGroup() as lanes:
                for _ in range(concurrency):
                    lanes.create_task(lane())
        except* CalibrationError as group:
            raise group.exceptions[0] from None
        seconds = loop.time() - start
    return _measured(results, concurrency, seconds)


def _measured(results: list[Result], concurrency: int, seconds: float) -> Measured:
    paces = [r.tpot_s for r in results if r.tpot_s is not None]
    return Measured(
        concurrency=concurrency,
        n=len(results),
        ttft_s=statistics.median(r.ttft_s for r in results if r.ttft_s is not None),
        tpot_s=statistics.median(paces) if paces else None,
        per_second=len(results) / seconds,
        prompt_tokens=statistics.fmean(r.prompt_tokens or 0 for r in results),
        results=tuple(results),
    )
