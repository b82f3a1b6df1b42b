"""The simulated cluster: a router, workers and an event queue. Deterministic: no clock, no randomness of its own."""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING

from tandem_operator.plan.facts import Role
from tandem_operator.simulate.worker import Request, SimWorker

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Cluster:
    """Requests go to the prefill worker with the fewest waiting tokens and the decode worker with the least load."""

    def __init__(self, arrivals: Iterator[Request]) -> None:
        """An empty cluster that will be offered these requests, in the order of their arrival."""
        self.now = 0.0
        self.workers: list[SimWorker] = []
        self.finished: list[Request] = []
        self.started: list[Request] = []  # first token out, in order
        self.arrived = 0
        self._arrivals = arrivals
        self._next = next(arrivals, None)
        self._events: list[tuple[float, int, str, int, SimWorker, Request | None]] = []
        self._order = 0
        self._unplaced: list[Request] = []

    def serving(self, role: Role) -> list[SimWorker]:
        """Ready workers that the router would send this role's work to."""
        return [w for w in self.workers if w.role in (role, Role.BOTH) and w.ready_at <= self.now and not w.leaving]

    def run_until(self, end: float) -> None:
        """Process every event up to `end` (seconds since the start)."""
        while True:
            arrival = self._next.arrived if self._next else inf
            event = self._events[0][0] if self._events else inf
            if min(arrival, event) > end:
                break
            if arrival <= event:
                self._arrive()
            else:
                self._handle()
        self.now = end
        for worker in self.workers:  # counters up to about now, as a scrape would see them
            self._cut(worker)

    def retire_idle(self) -> None:
        """Remove leaving workers that have drained."""
        self.workers = [w for w in self.workers if not (w.leaving and w.load == 0)]

    def retry_unplaced(self) -> None:
        """Place requests that found no serving worker."""
        waiting, self._unplaced = self._unplaced, []
        for request in waiting:
            self._place(request)

    def _arrive(self) -> None:
        request = self._next
        assert request is not None  # noqa: S101  # run_until looked
        self.now, self._next = request.arrived, next(self._arrivals, None)
        self.arrived += 1
        self._place(request)

    def _place(self, request: Request) -> None:
        prefill, decode = self.serving(Role.PREFILL), self.serving(Role.DECODE)
        if not prefill or not decode:
            self._unplaced.append(request)
            return
        request.prefill_worker = min(prefill, key=lambda w: (w.waiting_tokens(), w.name))
        request.decode_worker = min(decode, key=lambda w: (w.load, w.name))
        request.prefill_worker.queue.append(request)
        self._wake(request.prefill_worker)

    def _handle(self) -> None:
        self.now, _, kind, version, worker, request = heappop(self._events)
        if kind == "join":
            assert request is not None  # noqa: S101  # every join carries one
            worker.reserved -= 1
            worker.batch.append(request)
            self._wake(worker)
        elif version == worker.version:
            self._finish(worker)

    def _finish(self, worker: SimWorker) -> None:
        prefilled, ended = worker.finish()
        for request in prefilled:
            self._first_token(request)
        for request in ended:
            self._end(request)
        self._wake(worker)
        if ended:  # room for tickets: blocked heads may start
            for other in self.workers:
                if other.queue and other.until == inf:
                    self._wake(other)

    def _first_token(self, request: Request) -> None:
        decode = request.decode_worker
        assert decode is not None and request.prefill_worker is not None  # noqa: S101, PT018  # placed together
        request.first_at = self.now
        self.started.append(request)
        if request.output < 2:
            decode.reserved -= 1
            self._end(request)
            return
        delay = min(request.prompt, 256) * request.prefill_worker.truth.transfer_token_s
        self._push(self.now + delay, "join", 0, decode, request)

    def _end(self, request: Request) -> None:
        request.done_at = self.now
        self.finished.append(request)

    def _wake(self, worker: SimWorker) -> None:
        self._cut(worker)
        if worker.until < inf:
            return
        worker.start(self.now, self._ticket(worker))
        if worker.until < inf:
            self._push(worker.until, "end", worker.version, worker, None)

    def _ticket(self, worker: SimWorker) -> bool:
        """May the head of the queue run? At its first chunk it needs a promise of room on its decode worker."""
        if not worker.queue:
            return False
        head = worker.queue[0]
        decode = head.decode_worker
        assert decode is not None  # noqa: S101  # placed together
        if head.has_ticket:
            return True
        if not decode.has_room:
            return False
        decode.reserved += 1
        head.has_ticket = True
        return True

    def _cut(self, worker: SimWorker) -> None:
        if worker.interrupt(self.now):
            self._push(worker.until, "end", worker.version, worker, None)

    def _push(self, at: float, kind: str, version: int, worker: SimWorker, request: Request | None) -> None:
        self._order += 1
        heappush(self._events, (at, self._order, kind, version, worker, request))


def percentile(values: Sequence[float], percent: int) -> float | None:
    """The nearest-rank percentile; None for no values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * percent // 100) - 1))]
