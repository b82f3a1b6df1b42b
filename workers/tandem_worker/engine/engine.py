"""The engine: one thread that computes, and thread-safe, quick methods for everybody else."""

# ruff: noqa: A002 (a request's id is called id)

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import torch

from tandem_worker.engine.checks import check_request
from tandem_worker.engine.events import KvEvents
from tandem_worker.engine.grammar import NO_GRAMMARS, GrammarError, start_grammar
from tandem_worker.engine.lending import Lending
from tandem_worker.engine.pages import PagePool, page_chain
from tandem_worker.engine.queues import Queues
from tandem_worker.engine.ranked import make_store
from tandem_worker.engine.receivers import Receivers
from tandem_worker.engine.request import (
    EngineError,
    EngineSettings,
    InvalidRequestError,
    ModelInfo,
    PrefillSink,
    QueueFullError,
    Reservation,
    ReservationError,
    Sampling,
    Shortage,
    Token,
)
from tandem_worker.engine.reservations import Reservations
from tandem_worker.engine.runner import Runner
from tandem_worker.engine.sampler import NO_TOKEN
from tandem_worker.engine.scheduler import Bounds
from tandem_worker.engine.sequence import SequenceState, fresh, handed_over
from tandem_worker.engine.stats import look, retry_after_s
from tandem_worker.engine.thread import EngineThread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tandem_worker.engine.grammar import Grammars
    from tandem_worker.engine.memory import MemoryFile
    from tandem_worker.engine.model import LoadedModel
    from tandem_worker.engine.request import EngineStats, Story
    from tandem_worker.engine.scheduler import StepPlan

LOG = logging.getLogger(__name__)
IDLE_WAIT_S = 1.0  # an idle engine looks again this often, should a wake-up ever be lost
STOP_WAIT_S = 30.0


class Engine:
    """Serves one model: whole jobs, prefill halves and decode halves, in one continuous batch."""

    def __init__(
        self,
        model: LoadedModel,
        settings: EngineSettings,
        grammars: Grammars | None = None,
        draft: LoadedModel | None = None,
    ) -> None:
        """`grammars`: None refuses guided output; `draft`: guesses `speculate` tokens, else the prompt does.

        Raises ModelLoadError when `kv_memory_mib` does not hold one sequence of `max_context` tokens.
        """
        self.info: ModelInfo = model.info
        self._settings = settings
        self._grammars = grammars
        self._store = make_store(model, settings)
        self.events = KvEvents(settings.page_tokens)
        self._pool = PagePool(
            self._store.pages, settings.page_tokens, cache=settings.prefix_cache, on_removed=self.events.removed
        )
        bounds = Bounds(settings.chunk_tokens, settings.max_batch, settings.speculate)
        self._queues = Queues(self._pool, bounds, self.events)
        self._reservations = Reservations(self._pool, self._store)
        self._runner = Runner(model, self._store, settings, draft)
        self._receivers = Receivers(self.cancel)
        self._lock = threading.Condition()  # guards all of the above but the runner, which is the thread's own
        self._lending = Lending(self._pool, self._store, self._lock)
        self._cancelled: set[SequenceState] = set()
        self._age = 0
        self._stopping = False
        self.thread = EngineThread(self._run)

    @property
    def pages(self) -> int:
        """All KV pages of this engine, whoever holds them."""
        return self._store.pages

    def trace(self, on_end: Callable[[Story], None]) -> None:
        """Tell of traced requests when they end; the callee is quick, and does not raise."""
        self._queues.on_end = on_end

    def start(self) -> None:
        """Begin to compute."""
        self.thread.start()

    def stop(self) -> None:
        """End the thread; whoever is still served is told "error: …". Raises EngineError if a step does not end."""
        with self._lock:
            self._stopping = True
            self._lock.notify_all()
        if self.thread.ident is not None:
            self.thread.join(STOP_WAIT_S)
        if self.thread.is_alive():
            raise EngineError(f"the engine's step did not end within {STOP_WAIT_S:.0f} s; end the process")
        self._fail(self._queues.everyone(), "the worker is stopping")
        self._guarded([], self._runner.stop)

    def submit(self, id: str, prompt: Sequence[int], sampling: Sampling, on_token: Callable[[Token], None]) -> None:
        """Prefill and decode here. Raises QueueFullError, PromptTooLongError, InvalidRequestError."""
        sequence = self._sequence(id, prompt, sampling)
        sequence.on_token = on_token
        self._enqueue(sequence)

    def submit_prefill(
        self,
        id: str,
        prompt: Sequence[int],
        sampling: Sampling,
        have_pages: int,
        sink: PrefillSink,
        shares: int = 1,
    ) -> None:
        """The prefill half: pages below `have_pages` are not sent. Nothing is computed before `admit_prefill`.

        `shares`: into how many parts the heads of a page are split for the sink, see KvStore.read.
        Raises QueueFullError, PromptTooLongError, InvalidRequestError.
        """
        sequence = self._sequence(id, prompt, sampling)
        self._store.check_travel()
        sequence.sink = sink
        if not 0 <= have_pages <= self._pool.pages_for(len(prompt)):
            raise InvalidRequestError(f"{id!r} says it has {have_pages} pages of a prompt of {len(prompt)} tokens")
        sequence.ticket = "unasked"
        sequence.sent = have_pages
        sequence.shares = shares
        self._enqueue(sequence)

    def admit_prefill(self, id: str, first_page: int) -> None:
        """The ticket is there: compute, and push the pages from `first_page`. Ignored for an id that has ended."""
        with self._lock:
            sequence = self._queues.prefill.get(id)
            if sequence is not None and sequence.sink is not None:
                sequence.ticket = "granted"
                sequence.sent = max(sequence.sent, first_page)
                self._lock.notify_all()

    def check_grammar(self, schema: str) -> None:
        """Compile a schema, for some milliseconds, so that it is at hand. Raises InvalidRequestError."""
        if self._grammars is None:
            raise InvalidRequestError(NO_GRAMMARS)
        self._grammars.check(schema)

    def defer_prefill(self, id: str, *, deferred: bool) -> None:
        """Whether its decode worker has no room now: then others are asked for in its place. Ignored once granted."""
        with self._lock:
            sequence = self._queues.prefill.get(id)
            if sequence is not None and sequence.ticket in {"asked", "deferred"}:
                sequence.ticket = "deferred" if deferred else "asked"
                self._lock.notify_all()

    def cancel(self, id: str) -> None:
        """End whatever has this id; twice is harmless. Pages are back within one step.

        A job's `on_token` may be called by the step in progress, then no more; a sink gets `on_failed("cancelled")`
        unless it was done. An open reservation is released: use `quarantine` while somebody may write to it.
        """
        with self._lock:
            self._reservations.release(id)
            if (sequence := self._queues.find(id)) is not None:
                self._cancelled.add(sequence)
            self._lock.notify_all()

    def reserve(self, id: str, prompt: Sequence[int], sampling: Sampling) -> Reservation | Shortage:
        """Pages for a prompt that is computed elsewhere: all or nothing, leaving one for each who decodes already.

        Raises PromptTooLongError, InvalidRequestError, and ReservationError when the id has a reservation.
        """
        check_request(id, prompt, sampling, self.info.vocab, self._settings.max_context)
        self._store.check_travel()
        chain = page_chain(prompt, self._settings.page_tokens)
        with self._lock:
            spare = len(self._queues.decoding) + len(self._queues.joining)
            got = self._reservations.reserve(id, tuple(prompt), sampling, chain, spare)
            if isinstance(got, Reservation):
                self._queues.prefix_queries += len(prompt)
                self._queues.prefix_hits += got.have_pages * self._settings.page_tokens
            return got

    def match(self, prompt: Sequence[int]) -> int:
        """Leading full pages of the prompt that the prefix cache holds now."""
        chain = page_chain(prompt, self._settings.page_tokens)
        with self._lock:
            return self._pool.match(chain)

    @property
    def memory(self) -> memoryview:
        """All KV pages, of every rank, for a transfer backend that must know them beforehand."""
        return self._store.raw

    @property
    def memory_file(self) -> MemoryFile | None:
        """What it lies in, with `shared_memory`."""
        return self._store.file

    def open_pages(self, id: str, first_page: int, count: int) -> list[memoryview]:
        """The memory of reserved pages, to be filled with [n, shares, layers, 2, page_tokens, kv_heads / shares,
        head_dim] as it lies: as many shares as this worker's ranks split the KV heads into.

        Good until the reservation ends; whoever ends it must know that nobody fills them any more, or quarantine it.
        Raises ReservationError: ended, or out of range.
        """
        with self._lock:
            return self._reservations.open_pages(id, first_page, count)

    def pages_written(self, id: str, first_page: int, count: int) -> None:
        """These pages are filled; twice is harmless. Raises ReservationError: ended, or out of range."""
        with self._lock:
            self._reservations.pages_written(id, first_page, count)

    def commit(self, id: str, first: Token, on_token: Callable[[Token], None]) -> None:
        """The pages are all there: decode on after `first`, which the caller has emitted.

        Pages just go back (and stay findable) when `first` is the last token. Raises ReservationError when pages are
        missing or the reservation has ended; then it is as it was. GrammarError when `first` is not of its grammar.
        """
        with self._lock:
            if id in self._queues:
                raise ReservationError(f"{id!r} is being computed already; use another id")
            try:
                grammar = start_grammar(self._grammars, self._reservations.find(id).sampling, first.id)
            except GrammarError:
                self._reservations.release(id)
                raise
            self._age += 1
            sequence = handed_over(id, self._age, self._reservations.take(id), first, on_token)
            sequence.grammar = grammar
            self._queues.remember(sequence)
            if first.finish is not None or sequence.sampling.max_tokens == 1:
                self._queues.drop(sequence)
                return
            self._queues.joining[id] = sequence
            self._lock.notify_all()

    def release(self, id: str) -> None:
        """Give a reservation's pages back; twice is harmless."""
        with self._lock:
            self._reservations.release(id)
            self._lock.notify_all()

    def quarantine(self, id: str) -> int:
        """End a reservation whose writer may still write: its pages are neither free nor cached. Their number.

        Instead of `release`, not after it; 0 when there is no such reservation.
        """
        with self._lock:
            return self._reservations.quarantine(id)

    def unquarantine(self, id: str) -> None:
        """Nothing is in flight to the pages any more: they are free. Twice is harmless."""
        with self._lock:
            pages = self._pool.unquarantine(id)
            self._store.clear(pages)
            self._store.unstage(pages)
            self._lock.notify_all()

    def stats(self) -> EngineStats:
        """A look at it, for metrics."""
        with self._lock:
            return look(self._queues, self._pool, self._runner, self.events)

    def retry_after_s(self) -> int:
        """For whoever is turned away: see stats.py."""
        with self._lock:
            return retry_after_s(self._runner.work, self._queues.waiting_tokens)

    def _sequence(self, key: str, prompt: Sequence[int], sampling: Sampling) -> SequenceState:
        check_request(key, prompt, sampling, self.info.vocab, self._settings.max_context)
        sequence = fresh(key, prompt, sampling, self._settings.page_tokens)
        sequence.grammar = start_grammar(self._grammars, sampling)
        return sequence

    def _enqueue(self, sequence: SequenceState) -> None:
        with self._lock:
            if self._stopping:
                raise EngineError("the engine has stopped; use another worker")
            if sequence.id in self._queues:
                raise InvalidRequestError(f"a request {sequence.id!r} is being served already; use another id")
            if (waiting := self._queues.waiting) >= self._settings.max_queue:
                raise QueueFullError(f"{waiting} requests wait already, the most that may", self.retry_after_s())
            self._age += 1
            sequence.age = self._age
            self._queues.prefill[sequence.id] = sequence
            self._lock.notify_all()

    # Everything below runs on the engine's thread (`stop` calls `_fail` once that has ended).
    def _run(self) -> None:
        with torch.inference_mode():
            while True:
                with self._lock:
                    if self._stopping:
                        return
                    dropped = self._drop_cancelled()
                    plan = self._queues.next_step()
                    for key in plan.ask:
                        self._queues.prefill[key].ticket = "asked"
                    if not (dropped or plan.decode or plan.prefill or plan.ask):
                        self._lock.wait(IDLE_WAIT_S)
                        self._guarded([], self._runner.rest)
                        continue
                for one in dropped:
                    self._receivers.failed(one, "cancelled")
                self._step(plan)

    def _drop_cancelled(self) -> list[SequenceState]:
        found = [one for one in self._cancelled if self._queues.find(one.id) is one]
        self._cancelled.clear()
        for one in found:
            self._queues.drop(one)
        return [one for one in found if one.sink is not None]

    def _step(self, plan: StepPlan) -> None:
        for key in plan.ask:
            one = self._queues.prefill[key]
            if one.sink is not None:
                self._receivers.tell(one, one.sink.on_head)
        decoding = [self._queues.decoding[key] for key in plan.decode]
        pieces = [(self._queues.prefill[key], count) for key, count in plan.prefill]
        if decoding:
            self._guarded(decoding, lambda: self._decode(decoding))
        if pieces:
            self._guarded([one for one, _ in pieces], lambda: self._prefill(pieces))

    def _guarded(self, sequences: list[SequenceState], compute: Callable[[], None]) -> None:
        """A failing pass ends its own sequences with the reason; the engine serves on."""
        try:
            compute()
        except Exception as error:
            LOG.exception("a step of %d sequences failed", len(sequences))
            self._fail(sequences, f"the step failed: {error}"[:300])

    def _decode(self, decoding: list[SequenceState]) -> None:
        tokens = self._sound(self._runner.decode(decoding))
        with self._lock:
            for one, token in tokens:
                if token.finish is not None:
                    self._queues.drop(one)
        self._receivers.emit(tokens)

    def _prefill(self, pieces: list[tuple[SequenceState, int]]) -> None:
        for one, _ in pieces:  # what the prefix cache had travels while the rest is computed
            self._push(one, prompt_done=False)
        tokens = self._sound(self._runner.prefill(pieces))
        with self._lock:
            pieces = [piece for piece in pieces if piece[0].id in self._queues]
            for one, _ in pieces:
                self._queues.remember(one)
            for one, token in tokens:
                if one.sink is None and token.finish is None:
                    self._queues.prefilled(one)
                elif one.sink is None:
                    self._queues.drop(one)
        self._receivers.emit(tokens)
        complete = {one.id for one, _ in tokens}
        for one, _ in pieces:
            self._push(one, prompt_done=one.id in complete)
        self._end_halves([one for one, _ in tokens if one.sink is not None])

    def _sound(self, tokens: list[tuple[SequenceState, Token]]) -> list[tuple[SequenceState, Token]]:
        """Those that are tokens. What is none ends its own request with its reason, and its pages are nobody's."""
        for one, token in tokens:
            if token.id == NO_TOKEN:
                self._fail([one], (token.finish or "").removeprefix("error: "))
        return [(one, token) for one, token in tokens if token.id != NO_TOKEN]

    def _end_halves(self, halves: list[SequenceState]) -> None:
        for one in halves:
            with self._lock:
                self._queues.drop(one)
            if one.sink is not None:
                self._receivers.tell(one, one.sink.on_done)

    def _push(self, one: SequenceState, *, prompt_done: bool) -> None:
        self._receivers.tell(one, lambda: self._runner.push(one, self._lending.lend, prompt_done=prompt_done))

    def _fail(self, sequences: list[SequenceState], reason: str) -> None:
        with self._lock:
            alive = [one for one in sequences if one.id in self._queues]
            for one in alive:
                # What a masked row holds must be a number: see KvStore.
                self._store.clear(self._queues.discard(one))
        for one in alive:
            self._receivers.failed(one, reason)
