"""Open loop: each request leaves at its time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from e2e.load.addresses import checked
from e2e.load.client import Client, new_session
from e2e.load.plan import LoadPlan, arrivals, body
from e2e.load.result import Result

OnResult = Callable[[Result], None]


async def drive(
    plan: LoadPlan, on_result: OnResult = lambda _result: None, stop: asyncio.Event | None = None
) -> list[Result]:
    """Send the plan's requests; results in order of their intended times, `on_result` as each ends.

    It lasts `seconds` and at most `drain_s` more, or until `stop`; what is open then ends as `unfinished`. Raises
    ForbiddenAddressError for an address outside this machine and the one-machine cluster.
    """
    url = checked(plan.url)
    loop = asyncio.get_running_loop()
    async with new_session() as session:
        start = loop.time()
        client = Client(session, url, plan.request_timeout_s, lambda: loop.time() - start)
        results: list[Result] = []
        sending: set[asyncio.Task[None]] = set()

        async def one(result: Result) -> None:
            try:
                await client.send(body(plan, result.number), result)
            finally:
                on_result(result)

        stopped = asyncio.create_task((stop or asyncio.Event()).wait())
        try:
            for number, at in enumerate(arrivals(plan)):
                await asyncio.wait((stopped,), timeout=max(0.0, start + at - loop.time()))
                if stopped.done():
                    break
                results.append(Result(number, at))
                task = asyncio.create_task(one(results[-1]))
                sending.add(task)
                task.add_done_callback(sending.discard)
            await _drain(sending, stopped, start + plan.seconds + plan.drain_s)
        finally:
            stopped.cancel()
            await _cancel(sending)
    return results


async def _drain(sending: set[asyncio.Task[None]], stopped: asyncio.Task[bool], end: float) -> None:
    """Until all have ended, the time is over or somebody stops it."""
    loop = asyncio.get_running_loop()
    while sending and not stopped.done() and (left := end - loop.time()) > 0:
        await asyncio.wait({*sending, stopped}, timeout=left, return_when=asyncio.FIRST_COMPLETED)


async def _cancel(sending: set[asyncio.Task[None]]) -> None:
    await asyncio.sleep(0)  # a task that has not begun would end without a word: its result is told as all are
    tasks = list(sending)
    for task in tasks:
        task.cancel()
    faults = await asyncio.gather(*tasks, return_exceptions=True)
    for fault in faults:
        if isinstance(fault, Exception):
            raise fault
