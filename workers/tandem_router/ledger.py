"""What becomes of each request, from its arrival to its place in the metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from tandem_router.engines.base import Usage
from tandem_router.metrics import Metrics
from tandem_router.slo import Met, Targets, judge, judge_whole, tpot

CLIENT_GONE = 499
BROKE = 502


@dataclass(slots=True, eq=False)
class Journey:
    """One request; times in seconds of the ledger's clock. `code` 0: it has not ended yet."""

    began: float
    stream: bool = False
    code: int = 0
    path: str = ""
    first_at: float | None = None
    last_at: float = 0.0
    usage: Usage | None = None


class Ledger:
    """Opens and closes journeys, and knows which ones still wait for their first token."""

    def __init__(self, targets: Targets, clock: Callable[[], float]) -> None:
        self._targets = targets
        self._clock = clock
        self._waiting: dict[Journey, None] = {}  # in order of arrival
        self.metrics = Metrics(targets, self.oldest_waiting_s)
        self.inflight = 0
        self.idle = asyncio.Event()
        self.idle.set()

    def arrive(self) -> Journey:
        """A request is here."""
        now = self._clock()
        self.metrics.arrived(now)
        self._count(1)
        return Journey(now)

    def streams(self, journey: Journey) -> None:
        """It will be streamed: its first token is waited for."""
        journey.stream = True
        self._waiting[journey] = None

    def sent(self, journey: Journey) -> None:
        """Content went out to the client just now."""
        journey.last_at = self._clock()
        if journey.first_at is None:
            journey.first_at = journey.last_at
            self._waiting.pop(journey, None)
            self.metrics.ttft.observe(journey.first_at - journey.began)

    def end(self, journey: Journey) -> None:
        """It is over: count it once."""
        self._waiting.pop(journey, None)
        self._count(-1)
        self.metrics.ended(journey.code or 500, journey.path)
        if journey.usage is not None:
            self.metrics.used(journey.usage)
        if (pace := _pace(journey)) is not None:
            self.metrics.tpot.observe(pace)
        if (met := verdict(journey, self._clock(), self._targets)) is not None:
            self.metrics.judged(met)

    def oldest_waiting_s(self) -> float:
        """How long the oldest streaming request without a first token has waited; 0 when none does."""
        oldest = next(iter(self._waiting), None)
        return self._clock() - oldest.began if oldest else 0.0

    def _count(self, change: int) -> None:
        self.inflight += change
        if self.inflight:
            self.idle.clear()
        else:
            self.idle.set()
        self.metrics.inflight.set(self.inflight)


def verdict(journey: Journey, now: float, targets: Targets) -> Met | None:
    """Which targets the request met; None when there is nothing to judge.

    Failures (5xx, 429: turned away for want of room) and clients that left before the first token met none. Other
    refusals (4xx) are the client's own; of a client that left later, or an answer without usage, the pace is not known.
    """
    if journey.code in {0, 429} or journey.code >= 500:
        return Met.NONE
    if journey.code == CLIENT_GONE:
        return Met.NONE if journey.first_at is None else None
    if journey.code >= 400 or journey.usage is None:
        return None
    if not journey.stream:
        return judge_whole(now - journey.began, journey.usage.output_tokens, targets)
    if journey.first_at is None:
        return Met.NONE
    return judge(journey.first_at - journey.began, _pace(journey), targets)


def _pace(journey: Journey) -> float | None:
    if journey.first_at is None or journey.usage is None:
        return None
    return tpot(journey.first_at, journey.last_at, journey.usage.output_tokens)
