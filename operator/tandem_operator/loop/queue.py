"""Dirty keys: marked as often as one likes, taken once, one pass at a time for each; news before routine."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import TYPE_CHECKING

from tandem_operator.loop.refs import Done, Failed, Outcome, Ref, Waiting

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 60.0
ROUTINE_TAKE = 4  # every so many takes one is a routine pass, so that none waits for ever


def backoff_s(failures: int) -> float:
    """Delay before the next try after so many failures in a row: 1, 2, 4 … 60 s."""
    return float(min(LONGEST_DELAY_S, FIRST_DELAY_S * 2 ** min(max(failures - 1, 0), 10)))


class Queue:
    """Keys that need a pass. A key that is marked while its pass runs gets one more pass afterwards."""

    def __init__(self, jitter: Callable[[], float] = random.random) -> None:
        # Two lanes in the order of marking: a look at hundreds of resources must not stand before somebody's edit.
        self._asked: dict[Ref, None] = {}
        self._routine: dict[Ref, None] = {}
        self._news = asyncio.Event()  # a key came into a lane
        self._takes = 0
        self._running: dict[Ref, float] = {}  # monotonic start of the pass
        self._again: dict[Ref, bool] = {}  # is that further pass one that something asked for?
        self._failures: dict[Ref, int] = {}
        self._timers: dict[Ref, asyncio.TimerHandle] = {}
        self._said: dict[Ref, Outcome] = {}
        self._jitter = jitter

    def mark(self, ref: Ref) -> None:
        """Say that a key needs a pass, now: something of it has changed."""
        if ref in self._running:
            self._again[ref] = True
        elif ref not in self._asked:
            self._routine.pop(ref, None)
            self._asked[ref] = None
            self._news.set()

    def mark_routine(self, ref: Ref) -> None:
        """Say that a key needs a pass only because time has gone by: after those that need one for another reason."""
        if ref in self._running:
            self._again.setdefault(ref, False)
        elif ref not in self._asked and ref not in self._routine:
            self._routine[ref] = None
            self._news.set()

    def mark_later(self, ref: Ref, delay_s: float) -> None:
        """Say that a key needs a pass after a delay; the sooner of two counts. Spread by a tenth, against herds."""
        if ref in self._asked:
            return
        delay = delay_s * (1 + 0.1 * self._jitter())
        loop = asyncio.get_running_loop()
        timer = self._timers.get(ref)
        if timer is not None and timer.when() <= loop.time() + delay:
            return
        if timer is not None:
            timer.cancel()
        self._timers[ref] = loop.call_later(delay, self._timer_fired, ref)

    async def take(self, *, routine: bool = True) -> Ref:
        """Wait for a key, of the routine ones only where `routine`; its pass has begun."""
        while (ref := self._next(routine)) is None:
            self._news.clear()
            await self._news.wait()
        self._running[ref] = time.monotonic()
        if (timer := self._timers.pop(ref, None)) is not None:
            timer.cancel()  # whatever it was set for, this pass sees it
        return ref

    def finish(self, ref: Ref, outcome: Outcome) -> None:
        """The key's pass has ended; see to it that the next one comes when it should."""
        del self._running[ref]
        again = self._again.pop(ref, None)
        if isinstance(outcome, Failed):
            # A key that fails is not run again at once, however often it was marked meanwhile.
            self._failures[ref] = self._failures.get(ref, 0) + 1
            self.mark_later(ref, backoff_s(self._failures[ref]))
            return
        self._failures.pop(ref, None)
        if again:
            self.mark(ref)
        elif again is False:
            self.mark_routine(ref)
        if not again and isinstance(outcome, Waiting):
            self.mark_later(ref, outcome.retry_s)

    def say(self, ref: Ref, outcome: Outcome) -> None:
        """Log how a pass ended, where that is not how the one before it ended."""
        if self._said.get(ref, Done()) == outcome:
            return
        self._said[ref] = outcome
        if isinstance(outcome, Done):
            del self._said[ref]
            log.info("%s: as planned", ref)
        else:
            level = logging.INFO if isinstance(outcome, Waiting) else logging.WARNING
            log.log(level, "%s: %s: %s", ref, outcome.reason, outcome.message)

    def is_running(self, ref: Ref) -> bool:
        """Is a pass of this key under way?"""
        return ref in self._running

    def oldest_pass_s(self) -> float:
        """How long the oldest pass that still runs has been running, seconds; 0 where none runs."""
        return max((time.monotonic() - began for began in self._running.values()), default=0.0)

    def _next(self, routine: bool) -> Ref | None:
        """The key whose turn it is."""
        lanes = [self._asked]
        if routine:
            self._takes += bool(self._asked or self._routine)
            lanes.insert(self._takes % ROUTINE_TAKE != 0, self._routine)
        for lane in lanes:
            for ref in lane:
                del lane[ref]
                return ref
        return None

    def _timer_fired(self, ref: Ref) -> None:
        self._timers.pop(ref, None)
        self.mark(ref)


async def work(
    queue: Queue, run: Callable[[Ref], Awaitable[Outcome]], deadline_s: float, *, routine: bool = True
) -> None:
    """One worker: take a key, run its pass, for ever. A pass that raises is Failed, and said in the log."""
    while True:
        ref = await queue.take(routine=routine)
        outcome: Outcome = Failed("Cancelled", "the pass was cancelled")
        try:
            async with asyncio.timeout(deadline_s):  # wait_for of 3.11 loses a cancellation as the pass ends
                outcome = await run(ref)
        except TimeoutError:
            outcome = Failed("Deadline", f"the pass took more than {deadline_s:.0f} s")
        except Exception as error:
            log.exception("pass of %s failed", ref)
            outcome = Failed("InternalError", type(error).__name__)
        finally:
            queue.finish(ref, outcome)
        queue.say(ref, outcome)
