"""One simulated worker: a device that computes prompt chunks and decode steps, one thing at a time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import ceil, inf

from tandem_operator.plan.facts import Role

CHUNK_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Truth:
    """What the hidden hardware really costs; the planner never sees it."""

    prompt_token_s: float
    step_base_s: float
    step_slope_s: float
    prompt_base_s: float = 0.0
    transfer_token_s: float = 0.0

    def step_s(self, batch: int) -> float:
        """Seconds of one decode step of `batch` requests."""
        return self.step_base_s + self.step_slope_s * batch


@dataclass(slots=True)
class Request:
    """One request's way; times in seconds since the start, None = not yet."""

    arrived: float
    prompt: int
    output: int
    hashes: tuple[int, ...] = ()  # of the prompt's blocks, each over all before it: equal means the same prefix
    prefilled: int = 0
    decoded: int = 0
    has_ticket: bool = False
    prefill_worker: SimWorker | None = None
    decode_worker: SimWorker | None = None
    first_at: float | None = None
    done_at: float | None = None

    @property
    def ttft_s(self) -> float | None:
        """Arrival to first token."""
        return None if self.first_at is None else self.first_at - self.arrived

    @property
    def tpot_s(self) -> float | None:
        """Mean gap after the first token; None before the end or for one token."""
        if self.done_at is None or self.first_at is None or self.output < 2:
            return None
        return (self.done_at - self.first_at) / (self.output - 1)


@dataclass(slots=True)
class Counters:
    """What Prometheus would scrape; kept by the role that the worker had at the time."""

    prefill_busy: float = 0.0
    prefill_tokens: float = 0.0
    decode_busy: float = 0.0
    decode_steps: float = 0.0
    decode_tokens: float = 0.0


@dataclass(slots=True, eq=False)
class SimWorker:
    """A device that alternates between prompt chunks and runs of equal decode steps.

    `queue` holds prompts (FIFO; the head is being computed), `batch` the decoding requests, `reserved` the tickets
    that were promised to prompts still being prefilled elsewhere.
    """

    name: str
    pool: str
    role: Role
    truth: Truth
    max_batch: int
    ready_at: float = 0.0
    leaving: bool = False
    queue: deque[Request] = field(default_factory=deque)
    batch: list[Request] = field(default_factory=list)
    reserved: int = 0
    counters: dict[Role, Counters] = field(default_factory=lambda: {r: Counters() for r in Role})
    until: float = inf  # when the present work ends; inf: idle
    version: int = 0
    _chunk: int = 0
    _run_from: float = 0.0
    _run_steps: int = 0
    _step_s: float = 0.0

    @property
    def load(self) -> float:
        """Requests running and waiting."""
        return len(self.queue) + len(self.batch) + self.reserved

    @property
    def has_room(self) -> bool:
        """May another ticket be promised?"""
        return len(self.batch) + self.reserved < self.max_batch

    def waiting_tokens(self) -> int:
        """Prompt tokens queued or under way."""
        return sum(r.prompt - r.prefilled for r in self.queue)

    def start(self, now: float, head_may_run: bool) -> None:
        """Begin the next work if idle: chunks and steps take turns, so neither starves the other."""
        if self.until < inf:
            return
        was_chunk, self._chunk, self._run_steps = self._chunk > 0, 0, 0
        if self.queue and head_may_run and not (was_chunk and self.batch):
            head = self.queue[0]
            self._chunk = min(CHUNK_TOKENS, head.prompt - head.prefilled)
            base = self.truth.prompt_base_s if head.prefilled == 0 else 0.0
            self._step_s = base + self._chunk * self.truth.prompt_token_s
            self.until = now + self._step_s
        elif self.batch:
            self._step_s = self.truth.step_s(len(self.batch))
            alone = not (self.queue and head_may_run)
            self._run_steps = min(r.output - 1 - r.decoded for r in self.batch) if alone else 1
            self._run_from = now
            self.until = now + self._run_steps * self._step_s
        self.version += 1

    def interrupt(self, now: float) -> bool:
        """End a run of steps at the next step's boundary; True if the end moved."""
        if self._run_steps <= 1 or self.until == inf:
            return False
        done = max(1, ceil((now - self._run_from) / self._step_s - 1e-9))
        if done >= self._run_steps:
            return False
        self._run_steps = done
        self.until = self._run_from + done * self._step_s
        self.version += 1
        return True

    def finish(self) -> tuple[list[Request], list[Request]]:
        """Account for the work that just ended: (requests with their prompt done, requests with all tokens)."""
        self.until = inf
        counters = self.counters[self.role]
        if self._chunk:
            head = self.queue[0]
            head.prefilled += self._chunk
            counters.prefill_busy += self._step_s
            counters.prefill_tokens += self._chunk
            return ([self.queue.popleft()], []) if head.prefilled == head.prompt else ([], [])
        steps = self._run_steps
        counters.decode_busy += steps * self._step_s
        counters.decode_steps += steps
        counters.decode_tokens += steps * len(self.batch)
        for request in self.batch:
            request.decoded += steps
        ended = [r for r in self.batch if r.decoded >= r.output - 1]
        self.batch = [r for r in self.batch if r.decoded < r.output - 1]
        return [], ended
