"""The simulated cluster: a router, workers and an event queue. Deterministic: no clock, no randomness of its own.

A request's way: placed on a pair of workers; at the head of the prefill queue it asks the decode worker for a ticket;
its KV travels while it is computed; when the rest has arrived it joins the batch at the end of an iteration there.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf, nextafter
from typing import TYPE_CHECKING, Any

from tandem_operator.plan.facts import Role
from tandem_operator.simulate.counters import Bunches
from tandem_operator.simulate.ledger import Ledger
from tandem_operator.simulate.link import Network
from tandem_operator.simulate.quantile import percentile
from tandem_operator.simulate.request import Path
from tandem_operator.simulate.router import LeastBacklog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tandem_operator.plan.facts import Slo
    from tandem_operator.simulate.link import Flow
    from tandem_operator.simulate.request import Finished, Request
    from tandem_operator.simulate.router import Router
    from tandem_operator.simulate.worker import SimWorker

    Event = tuple[float, int, Callable[[Any], None], Any, int]

__all__ = ["Cluster", "percentile"]


class Timer:
    """The subject of an event that is never void."""

    version = 0


class Cluster:
    """Requests in, finished requests out. `lost`: retries of requests whose worker died; `preempted`: thrown out."""

    def __init__(
        self, arrivals: Iterator[Request], slo: Slo | None = None, router: Router | None = None, short_tokens: int = 0
    ) -> None:
        """An empty cluster that will be offered these requests, in the order of their arrival.

        short_tokens: a prompt that lacks at most so many tokens on its decode worker is computed there.
        """
        self.now = 0.0
        self.workers: list[SimWorker] = []
        self.gone: list[SimWorker] = []
        self.ledger = Ledger(slo)
        self.arrived = self.lost = self.preempted = 0
        self.bunches = Bunches()
        self._router, self._short = router or LeastBacklog(), short_tokens
        self._arrivals, self._next = arrivals, next(arrivals, None)
        self._events: list[Event] = []
        self._order = 0
        self._unplaced: list[Request] = []
        self._serving: tuple[list[SimWorker], list[SimWorker]] | None = None
        self._network = Network(self._expect)

    @property
    def finished(self) -> Sequence[Finished]:
        """All that have ended so far, in that order."""
        return self.ledger.finished()

    @property
    def unplaced(self) -> int:
        """Requests that no worker serves at present."""
        return len(self._unplaced)

    def serving(self, role: Role) -> list[SimWorker]:
        """Ready workers that the router would send this role's work to."""
        if self._serving is None:
            able = [w for w in self.workers if w.ready_at <= self.now and not w.leaving]
            prefill = [w for w in able if w.role is not Role.DECODE]
            self._serving = prefill, [w for w in able if w.role is not Role.PREFILL]
        return self._serving[role is Role.DECODE]

    def changed(self) -> None:
        """Workers came, went, became ready or changed role: requests that found nobody try again."""
        self._serving = None
        waiting, self._unplaced = self._unplaced, []
        for request in waiting:
            self._place(request)

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Do this then."""
        self._push(time, lambda _: action(), Timer, 0)

    def run_until(self, end: float) -> None:
        """Process every event up to `end` (seconds since the start)."""
        self.changed()
        while (request := self._next) is not None and request.arrived <= end:
            self._handle_before(request.arrived)
            self._arrive(request)
        self._handle_before(nextafter(end, inf))
        self.now = end
        for worker in self.workers:
            worker.count_until(end)

    def _handle_before(self, time: float) -> None:
        events = self._events
        while events and events[0][0] < time:
            self.now, _, handle, subject, version = heappop(events)
            if subject.version == version:
                handle(subject)

    # --- arrivals ---

    def _arrive(self, request: Request) -> None:
        if request.arrived < self.now:
            raise ValueError(f"request {self.arrived + 1} arrives at {request.arrived} s, before its predecessor: sort")
        self.now = request.arrived
        self.arrived += 1
        self.bunches.add(self.now)
        self._next = next(self._arrivals, None)
        self._place(request)

    def _place(self, request: Request) -> None:
        prefills, decodes = self.serving(Role.PREFILL), self.serving(Role.DECODE)
        if not prefills or not decodes:
            self._unplaced.append(request)
            return
        pair = self._router.choose(request, prefills, decodes)
        if pair is None:
            self.ledger.end(request, self.now, Path.REFUSED)
            return
        prefill, decode = pair
        if self._short and request.tokens - decode.memory.cached(request) <= self._short:
            prefill = decode
        if not (prefill.fits(request) and decode.fits(request)):
            prefills, decodes = [w for w in prefills if w.fits(request)], [w for w in decodes if w.fits(request)]
            if not prefills or not decodes:
                self.ledger.end(request, self.now, Path.REFUSED)
                return
            prefill, decode = self._router.choose(request, prefills, decodes) or (prefill, decode)
        decode.assigned += 1
        decode.assigned_tokens += request.prompt
        request.decode_worker = decode
        request.path = Path.ALONE if prefill is decode else Path.PAIR
        self._enqueue(request, prefill)
        self._offer(prefill)

    def _enqueue(self, request: Request, prefill: SimWorker, is_first: bool = False) -> None:
        request.prefill_worker = prefill
        request.computed = 0
        request.expected = request.tokens - prefill.memory.cached(request)
        prefill.expected += request.expected
        if is_first:
            prefill.queue.insert(1 if prefill.admitted else 0, request)
        else:
            prefill.queue.append(request)

    # --- a worker's iterations ---

    def _offer(self, worker: SimWorker) -> None:
        """There may be a prompt to start: a worker that only decodes looks up at the end of its iteration."""
        if worker.until == inf:
            self._begin(worker)
        elif not worker.admitted:
            self._cut(worker)

    def _cut(self, worker: SimWorker) -> None:
        if worker.cut(self.now):
            self._push(worker.until, self._finish, worker, worker.version)

    def _finish(self, worker: SimWorker) -> None:
        prefilled, ended = worker.complete()
        if prefilled is not None:
            self._first_token(prefilled, worker)
        for request in ended:
            self._end(request, worker)
        self._begin(worker)
        self._freed(worker)

    def _begin(self, worker: SimWorker) -> None:
        """At the end of an iteration, or idle: who has come joins, the head is admitted, and the next run begins."""
        if worker.until < inf or worker.gone_at is not None:
            return
        if worker.joining:
            worker.join()
        if worker.batch.size > worker.memory.free:
            self._preempt(worker)
        admitted = worker.queue and not worker.admitted and self._admit(worker)
        worker.start(self.now)
        if worker.until < inf:
            self._push(worker.until, self._finish, worker, worker.version)
            if admitted:
                self._stream(worker)
        elif worker.leaving:
            self._retire(worker)

    def _preempt(self, worker: SimWorker) -> None:
        """While the next step's pages are not there, the youngest gives its own back and is computed again here."""
        batch, memory = worker.batch, worker.memory
        while batch.size > memory.free and batch.growth(1) > memory.free:
            victim = batch.youngest()
            worker.throw_out(victim)
            self._drop_ticket(victim, worker)
            self.preempted += 1
            victim.retries += 1
            self._enqueue(victim, worker, is_first=True)

    def _admit(self, worker: SimWorker) -> bool:
        """May the head of the queue run? It needs a ticket of its decode worker, and pages here."""
        head = worker.queue[0]
        decode = head.decode_worker
        assert decode is not None  # noqa: S101  # placed together
        if head.ticket is None:
            if not decode.promise(head, self.now):
                decode.waiters[worker] = None
                return False
            if decode is not worker and decode.is_short():
                self._cut(decode)
        if decode is not worker:
            head.source = worker.memory.reserve(head, head.tokens, worker.batch.size)
            if head.source is None:
                worker.waiters[worker] = None
                return False
        worker.admit(decode)
        return True

    # --- KV on its way ---

    def _stream(self, worker: SimWorker) -> None:
        """The head has begun: its chunks but the last travel while the next is computed."""
        head, run = worker.queue[0], worker.run
        decode = head.decode_worker
        assert decode is not None  # noqa: S101  # placed
        early = head.to_send - head.last
        if decode is worker or early <= 0 or min(worker.link.rate, decode.link.rate) == inf:
            return
        seconds = run.seconds(run.count) * (run.tokens / max(run.computed(run.count), 1))
        if seconds > 0:
            head.flow = self._network.stream(head, (worker.link, decode.link), early, seconds, self.now)

    def _send_rest(self, request: Request, prefill: SimWorker, decode: SimWorker) -> None:
        ends, setup_s = (prefill.link, decode.link), prefill.truth.transfer_base_s
        rate = min(prefill.link.rate, decode.link.rate)
        if rate == inf:
            self._push(self.now + setup_s, self._arrive_at_decode, request, request.version)
        elif request.flow is not None:
            self._network.tail(request.flow, request.last + setup_s * rate, self.now)
        else:
            request.flow = self._network.start_tail(request, ends, request.to_send + setup_s * rate, self.now)

    def _expect(self, flow: Flow, time: float) -> None:
        self._push(time, self._deliver, flow, flow.version)

    def _deliver(self, flow: Flow) -> None:
        self._close(flow.request)
        self._arrive_at_decode(flow.request)

    def _close(self, request: Request) -> None:
        if request.flow is not None:
            self._network.close(request.flow, self.now)
            request.flow = None

    def _arrive_at_decode(self, request: Request) -> None:
        prefill, decode = request.prefill_worker, request.decode_worker
        assert prefill is not None and decode is not None and request.ticket is not None  # noqa: S101, PT018  # sent
        self._drop_source(request, prefill)
        decode.memory.publish(request, request.ticket)
        decode.joining.append(request)
        if decode.until == inf:
            self._begin(decode)
        else:
            self._cut(decode)
        self._freed(decode)  # a block that came twice is kept once

    # --- ends ---

    def _first_token(self, request: Request, prefill: SimWorker) -> None:
        decode = request.decode_worker
        assert decode is not None and request.ticket is not None  # noqa: S101, PT018  # admitted
        prefill.expected -= request.expected
        if request.first_at is None:
            self.ledger.first(request, self.now)
        is_last = request.generated + 1 == request.output
        if request.source is not None:
            prefill.memory.publish(request, request.source)
        else:
            decode.memory.publish(request, request.ticket)
        if prefill is not decode and not is_last:
            self._send_rest(request, prefill, decode)
        request.generated += 1
        if is_last:
            self._close(request)
            self._drop_source(request, prefill)
            self._end(request, decode)
            self._freed(decode)
        elif prefill is decode:
            decode.joining.append(request)  # the iteration has just ended

    def _end(self, request: Request, decode: SimWorker) -> None:
        self.ledger.end(request, self.now, request.path)
        self._drop_ticket(request, decode)
        self._unassign(request, decode)

    def _unassign(self, request: Request, decode: SimWorker) -> None:
        decode.assigned -= 1
        decode.assigned_tokens -= request.prompt
        if decode.leaving:
            self._retire(decode)

    def _drop_ticket(self, request: Request, decode: SimWorker) -> None:
        if request.ticket is not None:
            decode.coming.pop(request, None)
            decode.memory.release(request, request.ticket)
            request.ticket = None

    def _drop_source(self, request: Request, prefill: SimWorker) -> None:
        """The prefill worker's pages are free again."""
        if request.source is None:
            return
        prefill.memory.release(request, request.source)
        request.source = None
        self._retire(prefill)
        self._freed(prefill)

    def _freed(self, decode: SimWorker) -> None:
        """Room: heads that waited for it, for a ticket or for pages of their own, may start."""
        if decode.waiters:
            waiting, decode.waiters = decode.waiters, {}
            for worker in waiting:
                self._offer(worker)

    # --- workers that go ---

    def flip(self, worker: SimWorker, role: Role) -> None:
        """From now on the router sends it the other work; what it has it finishes."""
        worker.count_until(self.now)
        worker.role = role
        self.changed()

    def leave(self, worker: SimWorker) -> None:
        """Take no more work, finish what there is, then go."""
        worker.leaving = True
        self._serving = None
        self._retire(worker)

    def _retire(self, worker: SimWorker) -> None:
        if worker.leaving and worker.is_empty and worker.until == inf:
            self._remove(worker)

    def _remove(self, worker: SimWorker) -> None:
        worker.gone_at = self.now
        self.workers.remove(worker)
        self.gone.append(worker)
        self._serving = None

    def fail(self, worker: SimWorker) -> None:
        """It dies with all that it held; its requests start again elsewhere, with the tokens that they have."""
        worker.stop(self.now)
        self._remove(worker)
        victims = self._on(worker)
        for request in victims:
            self._uproot(request)
        self.lost += len(victims)
        for other in list(self.workers):
            other.waiters.pop(worker, None)
            self._freed(other)
            self._offer(other)
        for request in victims:
            self._place(request)

    def _on(self, dead: SimWorker) -> list[Request]:
        """Requests whose way led over it, in the order of their arrival."""
        everyone = [r for w in [*self.workers, dead] for r in (*w.queue, *w.coming, *w.batch.requests)]
        uses_it = {
            r: None
            for r in everyone
            if r.decode_worker is dead or (r.prefill_worker is dead and (r in dead.queue or r.source is not None))
        }
        return sorted(uses_it, key=lambda r: r.arrived)

    def _uproot(self, request: Request) -> None:
        prefill, decode = request.prefill_worker, request.decode_worker
        assert prefill is not None and decode is not None  # noqa: S101, PT018  # placed
        self._close(request)
        if request in prefill.queue:
            prefill.abandon(request, self.now)
        elif request in decode.batch.requests:
            decode.throw_out(request)
        if request in decode.joining:
            decode.joining.remove(request)
        self._drop_source(request, prefill)
        self._drop_ticket(request, decode)
        self._unassign(request, decode)
        request.retries += 1
        request.version += 1

    def _push(self, at: float, handle: Callable[[Any], None], subject: Any, version: int) -> None:
        self._order += 1
        heappush(self._events, (at, self._order, handle, subject, version))
