"""Where every sequence stands: waiting for prefill, joining, decoding. And how it comes to pages and loses them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tandem_worker.engine.events import Origin
from tandem_worker.engine.pages import page_chain
from tandem_worker.engine.request import Shortage
from tandem_worker.engine.scheduler import Bounds, Decoding, Prefilling, StepPlan, plan_step
from tandem_worker.engine.sequence import no_pages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tandem_worker.engine.events import KvEvents
    from tandem_worker.engine.pages import PagePool
    from tandem_worker.engine.request import Story
    from tandem_worker.engine.sequence import SequenceState

MAX_LOOK = 64  # entries of the prefill queue that a step looks at


def by_priority(sequences: Iterable[SequenceState]) -> list[SequenceState]:
    """The urgent ones first, and equals in the order that they have."""
    return sorted(sequences, key=lambda one: one.sampling.priority)


class Queues:
    """All sequences of an engine, and the pages that they hold. Not thread-safe: the engine holds its lock."""

    def __init__(self, pool: PagePool, bounds: Bounds, events: KvEvents) -> None:
        self.prefill: dict[str, SequenceState] = {}  # in the order of service among equals
        self.joining: dict[str, SequenceState] = {}  # their prompt is computed; no seat yet
        self.decoding: dict[str, SequenceState] = {}
        self.on_end: Callable[[Story], None] = lambda _story: None  # of traced requests; quick, and must not raise
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.preemptions = 0
        self._pool = pool
        self._bounds = bounds
        self._events = events

    def __contains__(self, key: str) -> bool:
        return self.find(key) is not None

    def find(self, key: str) -> SequenceState | None:
        """The sequence, wherever it stands."""
        return self.prefill.get(key) or self.joining.get(key) or self.decoding.get(key)

    def everyone(self) -> list[SequenceState]:
        """All sequences."""
        return [*self.prefill.values(), *self.joining.values(), *self.decoding.values()]

    @property
    def waiting(self) -> int:
        """Sequences that hold no pages yet; `max_queue` bounds them."""
        return sum(not one.started for one in self.prefill.values())

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens that are yet to be computed."""
        return sum(one.left for one in self.prefill.values())

    def next_step(self) -> StepPlan:
        """Seat those who join, decide, and carry out preemption until a step remains that has its pages."""
        while (plan := self._plan()).preempt:
            for key in plan.preempt:
                self._preempt(key)
        size = self._pool.page_tokens
        for one in self.decoding.values() if plan.decode else ():
            if one.needs_page(size):
                self._grow(one)
            if self._bounds.ahead:
                self._grow_ahead(one)
        prefill = tuple(piece for piece in plan.prefill if self._start(self.prefill[piece[0]]))
        fitted = tuple((key, min(count, self.prefill[key].left)) for key, count in prefill)
        return StepPlan(decode=plan.decode, prefill=fitted, ask=plan.ask)

    def prefilled(self, sequence: SequenceState) -> None:
        """All its tokens are computed and the next one is sampled: it decodes from now on."""
        del self.prefill[sequence.id]
        self.decoding[sequence.id] = sequence

    def remember(self, sequence: SequenceState) -> None:
        """Make its full pages findable."""
        chain = sequence.chain[: sequence.computed // self._pool.page_tokens]
        fresh = self._pool.remember(chain, sequence.pages)
        origin = Origin(sequence.sampling.blocks, sequence.sampling.prompt_bytes)
        self._events.stored(chain, fresh, origin, sequence.prompt_tokens)

    def drop(self, sequence: SequenceState) -> None:
        """It has ended: its pages go back, and stay findable."""
        self._leave(sequence)
        self._give_back(sequence)

    def discard(self, sequence: SequenceState) -> list[int]:
        """It has failed: nobody may find its pages any more. Those that nobody else holds or reads, to be cleared."""
        self._leave(sequence)
        own = self._pool.forget(sequence.pages)
        self._pool.release(sequence.pages)
        sequence.pages = no_pages()
        return own

    def _plan(self) -> StepPlan:
        self._seat()
        size = self._pool.page_tokens
        decoding = [
            Decoding(one.id, one.age, one.needs_page(size), one.sampling.priority) for one in self.decoding.values()
        ]
        # Started ones first wherever they stand: they hold pages, which only their end gives back.
        started = [one for one in self.prefill.values() if one.started]
        # Whose decode worker has no room must not hide those behind it, whose workers have.
        fresh = by_priority(one for one in self.prefill.values() if not one.started and one.ticket != "deferred")
        queue = [self._seen(one) for one in (*started, *fresh[:MAX_LOOK])]
        return plan_step(decoding, queue, self._pool.free_pages, self._bounds)

    def _seen(self, one: SequenceState) -> Prefilling:
        if one.started:
            return Prefilling(one.id, one.age, one.left, 0, one.started, one.ticket, one.sampling.priority)
        # What the prefix cache has is no work: counted, one cached prompt would take a whole step's budget.
        cached = self._pool.match(one.usable_chain(self._pool.page_tokens))
        need = self._pool.pages_for(len(one.tokens)) - cached
        left = one.left - cached * self._pool.page_tokens
        return Prefilling(one.id, one.age, left, need, one.started, one.ticket, one.sampling.priority)

    def _seat(self) -> None:
        taken = len(self.decoding) + sum(one.started and one.sink is None for one in self.prefill.values())
        for one in by_priority(self.joining.values())[: max(self._bounds.max_batch - taken, 0)]:
            self.decoding[one.id] = self.joining.pop(one.id)

    def _start(self, one: SequenceState) -> bool:
        """Claim its pages if it has none. False: they are not there after all; it is looked at again next step."""
        if one.started:
            return True
        claim = self._pool.reserve(len(one.tokens), one.usable_chain(self._pool.page_tokens))
        if isinstance(claim, Shortage):
            return False
        one.started_ns = one.started_ns or time.time_ns()
        one.pages.extend(claim.pages)
        one.computed = claim.shared * self._pool.page_tokens
        if not one.preempted:
            self.prefix_queries += one.prompt_tokens
            self.prefix_hits += one.computed
        return True

    def _grow(self, one: SequenceState) -> None:
        page = self._pool.grow()
        if page is None:
            raise AssertionError("the plan promised a page to every decode that needs one")
        one.pages.append(page)

    def _grow_ahead(self, one: SequenceState) -> None:
        """A page for guesses, where every decode's next page is there beside it."""
        while len(one.pages) * self._pool.page_tokens < len(one.tokens) + self._bounds.ahead:
            if self._pool.free_pages <= 2 * len(self.decoding) or (page := self._pool.grow()) is None:
                return
            one.pages.append(page)

    def _preempt(self, key: str) -> None:
        one = self.prefill.pop(key, None) or self.decoding.pop(key)
        self._give_back(one)
        one.reset(self._pool.page_tokens)
        self.prefill = {key: one, **self.prefill}
        self.preemptions += 1

    def _leave(self, one: SequenceState) -> None:
        for queue in (self.prefill, self.joining, self.decoding):
            queue.pop(one.id, None)
        if one.sampling.trace:
            self.on_end(one.story())

    def _give_back(self, one: SequenceState) -> None:
        if one.computed:
            one.chain = page_chain(one.tokens[: one.computed], self._pool.page_tokens)
            self.remember(one)
        self._pool.release(one.pages)
        one.pages = no_pages()
