"""One simulated worker: a device that computes prompt chunks and decode steps, one iteration at a time."""

from __future__ import annotations

from collections import deque
from math import inf

from tandem_operator.plan.facts import Role
from tandem_operator.simulate.batch import Batch
from tandem_operator.simulate.counters import Counters
from tandem_operator.simulate.iterations import Iterations
from tandem_operator.simulate.link import Link
from tandem_operator.simulate.memory import Memory
from tandem_operator.simulate.request import Request
from tandem_operator.simulate.truth import Engine, Truth

__all__ = ["Engine", "Request", "SimWorker", "Truth"]

DEFAULT = Engine()


class SimWorker:
    """`queue` holds prompts (FIFO; the head is computed once it is `admitted`), `batch` the decoding requests.

    `coming` has a ticket and will join the batch; `joining` of them have all their KV and wait for the iteration's end.
    """

    __slots__ = (
        "_banked",
        "_from",
        "_is_fresh",
        "admitted",
        "assigned",
        "assigned_tokens",
        "batch",
        "born_at",
        "coming",
        "counters",
        "engine",
        "expected",
        "gone_at",
        "joining",
        "leaving",
        "link",
        "max_batch",
        "memory",
        "name",
        "pool",
        "queue",
        "ready_at",
        "role",
        "run",
        "truth",
        "until",
        "version",
        "waiters",
    )

    def __init__(
        self,
        name: str,
        pool: str,
        role: Role,
        truth: Truth,
        max_batch: int,
        ready_at: float = 0.0,
        engine: Engine = DEFAULT,
        born_at: float = 0.0,
    ) -> None:
        """Idle and empty. `ready_at`: when it may serve; `born_at`: when its GPUs were taken."""
        self.name = name
        self.pool = pool
        self.role = role
        self.truth = truth
        self.engine = engine
        self.max_batch = max_batch
        self.ready_at = ready_at
        self.born_at = born_at
        self.gone_at: float | None = None
        self.leaving = False
        self.queue: deque[Request] = deque()
        self.admitted = False
        self.coming: dict[Request, None] = {}
        self.joining: list[Request] = []
        self.waiters: dict[SimWorker, None] = {}  # workers whose head waits for room here
        self.batch = Batch(engine.page_tokens)
        self.memory = Memory(truth, engine)
        self.link = Link(truth.transfer_token_s)
        self.counters: dict[Role, Counters] = {role: Counters() for role in Role}
        self.assigned = 0  # requests that the router sent here to decode and that have not ended
        self.assigned_tokens = 0
        self.expected = 0  # prompt tokens that the router sent here and that are not known to be computed
        self.until = inf  # when the present run ends; inf: idle
        self.version = 0  # of the run: an event of an older one is void
        self.run = Iterations()
        self._from = 0.0
        self._banked = 0
        self._is_fresh = False

    @property
    def load(self) -> int:
        """Requests running and waiting."""
        own = self.admitted and self.queue[0] in self.coming  # in the queue and holding a ticket here
        return len(self.queue) + self.batch.size + len(self.coming) - own

    @property
    def is_empty(self) -> bool:
        """Has everything that was ever sent here gone, its outgoing KV too?"""
        return not (self.queue or self.assigned or self.link.flows)

    def waiting_tokens(self) -> int:
        """Prompt tokens queued or under way, less those that are already computed; after `count_until`."""
        left = sum(r.tokens - r.computed for r in self.queue)
        return left - self.run.computed(self._banked) if self.admitted else left

    def promise(self, request: Request, now: float) -> bool:
        """Give the request a ticket: a seat, and pages for its tokens and the first answer; False: no room now."""
        batch, memory, run = self.batch, self.memory, self.run
        if batch.size + len(self.coming) >= self.max_batch:
            return False
        # A spare page for everybody who decodes, or the newcomer would be thrown out at the next page's end.
        tokens, spare = request.tokens + 1, batch.size
        if run.batch and self.until < inf:
            spare += self._claimed(self.engine.pages(tokens) + spare, now)
        request.ticket = memory.reserve(request, tokens, spare)
        if request.ticket is None:
            return False
        self.coming[request] = None
        return True

    def _claimed(self, besides: int, now: float) -> int:
        """Pages that the run claims up to the iteration under way, booked at its end; a bound where that will do."""
        run, batch = self.run, self.batch
        bound = batch.at_most(run.count)
        if bound + besides <= self.memory.free:
            return bound
        return batch.growth(min(run.ending_by(now - self._from), run.count))

    def is_short(self) -> bool:
        """Does the run claim more pages than there are, since a ticket was given away meanwhile?"""
        run, free = self.run, self.memory.free
        if self.until == inf or not run.batch or self.batch.at_most(run.count) <= free:
            return False
        return free < self.batch.growth(run.count)

    def fits(self, request: Request) -> bool:
        """Would all its tokens fit here, alone?"""
        return request.prompt + request.output <= self.memory.whole_tokens

    def admit(self, decode: SimWorker) -> None:
        """The head may run; what is cached here is not computed, and what the decode worker has does not travel."""
        head, engine = self.queue[0], self.engine
        tokens, block, chunk = head.prompt + head.generated, engine.block_tokens, engine.chunk_tokens
        hold = head.ticket if decode is self else head.source
        assert hold is not None and head.ticket is not None  # noqa: S101, PT018  # reserved before
        # The last token is always computed, and its KV always travels: it gives the first answer.
        head.computed = min(hold.blocks * block, tokens - 1) if hold.blocks else 0
        head.to_send = max(tokens - head.ticket.blocks * block, 1)
        head.last = min((tokens - head.computed - 1) % chunk + 1, head.to_send)
        self.admitted = self._is_fresh = True

    def abandon(self, request: Request, now: float) -> None:
        """It is prefilled here no more; if it was under way, the chunk is lost."""
        if self.admitted and self.queue[0] is request:
            self.stop(now)
        self.queue.remove(request)
        self.expected -= request.expected

    def join(self) -> None:
        """Between two iterations, requests that have all their KV begin to decode."""
        for request in self.joining:
            del self.coming[request]
            self.batch.add(request)
        self.joining.clear()

    def start(self, now: float) -> None:
        """Begin the longest run that nothing known will change: a prompt, or steps until one ends or memory is full."""
        run, batch = self.run, self.batch
        if not (self.admitted or batch.size):
            return
        run.clear()
        if self.admitted:
            head = self.queue[0]
            left = head.tokens - head.computed
            run.chunks(self.truth, head.computed, left, self.engine.chunk_tokens, self._is_fresh)
            self._is_fresh = False
        if size := batch.size:
            run.steps(self.truth, size, batch.context, batch.next_steps(self.memory.free))
        if run.count:
            self._from, self._banked = now, 0
            self.until = now + run.seconds(run.count)
            self.version += 1

    def cut(self, now: float) -> bool:
        """End the run with the iteration that is under way; True if its end moved."""
        run = self.run
        if run.count <= 1 or self.until == inf:
            return False
        done = run.ending_by(now - self._from)
        if done >= run.count:
            return False
        run.shorten(done)
        self.until = self._from + run.seconds(done)
        self.version += 1
        return True

    def complete(self) -> tuple[Request | None, list[Request]]:
        """The run has ended: (request with its prompt done, requests with all their tokens)."""
        run, ended = self.run, []
        self._bank(run.count)
        self.until = inf
        if run.batch:
            if self.memory.room < inf:
                self.memory.grow(self.batch.growth(run.count))
            ended = self.batch.advance(run.count)
            for request in ended:
                self.own_pages(request)
        if not run.chunk:
            return None, ended
        head = self.queue[0]
        head.computed += run.computed(run.count)
        if head.computed < head.tokens:
            return None, ended
        self.admitted = False
        return self.queue.popleft(), ended

    def stop(self, now: float) -> None:
        """Drop the iteration under way; those that have ended count."""
        self.count_until(now)
        if self.until < inf and self.run.batch:
            self.memory.grow(self.batch.growth(self._banked))
            self.batch.advance(self._banked)
        self.until, self.admitted = inf, False
        self.version += 1

    def throw_out(self, request: Request) -> None:
        """Leave the batch before the end; the tokens so far are kept, their pages are not."""
        self.batch.remove(request)
        self.own_pages(request)

    def own_pages(self, request: Request) -> None:
        """While it decoded, its pages grew with it."""
        assert request.ticket is not None  # noqa: S101  # nobody decodes without
        if self.memory.room == inf:
            return  # growth is not counted where it bounds nothing
        whole = self.engine.pages(request.tokens)
        request.ticket.pages = whole - request.ticket.blocks * self.memory.block_pages

    def count_until(self, now: float) -> None:
        """Bring the counters up to now, as a scrape would see them: whole iterations."""
        if self.until == inf:
            return
        done = min(self.run.ending_by(now - self._from), self.run.count)
        self._bank(done if self._from + self.run.seconds(done) <= now else done - 1)

    def _bank(self, done: int) -> None:
        """Count the run's iterations up to this one, under the role of now."""
        run, before = self.run, self._banked
        if done <= before:
            return
        counters = self.counters[self.role]
        if run.chunk:
            counters.prefill_busy += run.chunk_seconds(done) - (run.chunk_seconds(before) if before else 0.0)
            counters.prefill_tokens += run.computed(done) - (run.computed(before) if before else 0)
        if run.batch:
            steps = done - before
            counters.decode_busy += run.step_seconds(done) - (run.step_seconds(before) if before else 0.0)
            counters.decode_steps += steps
            counters.decode_tokens += steps * run.batch
        self._banked = done
