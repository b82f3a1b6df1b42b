"""One machine under Splitwise's batching rules: whole prompts first, decodes preempted for them, forced after a while.

The rules are splitwise-sim's (instance.py, SplitwiseInstance; commit 8f99e7d), odd ones included.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from itertools import takewhile
from math import inf, sqrt
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tandem_operator.simulate.published.costs import Costs

MAX_BATCH: Final = 512  # requests an iteration (configs/start_state)
MAX_TOKENS: Final = 2048  # tokens an iteration; one longer prompt may go alone
MAX_WAITS: Final = 4  # iterations that a task may be left out of before it is forced in


@dataclass(slots=True, eq=False)
class Job:
    """One request; times in seconds, KV in tokens."""

    arrived: float
    prompt: int
    output: int
    kv_held: int = 0
    first_at: float = inf
    done_at: float = inf


@dataclass(slots=True, eq=False)
class Task:
    """A job's prompt or its decoding on one machine."""

    job: Job
    is_prompt: bool
    tokens: int  # of an iteration
    kv_tokens: int  # allocated when it first runs
    steps: int = 0  # decode steps to go, as of its last entry into a batch
    end: int = 0  # the machine's decode step that is its last
    waits: int = 0  # iterations that it was left out of, up to `since`
    since: int | None = None  # the machine's start from which it has been left out again; None: it does not wait
    has_run: bool = False
    in_batch: bool = False

    def context(self, to_go: int) -> int:
        """Tokens in its KV cache with so many decode steps to go."""
        return self.job.prompt + self.job.output - 1 - to_go


def prompt_task(job: Job) -> Task:
    """Computes the prompt and the first token."""
    return Task(job, is_prompt=True, tokens=job.prompt, kv_tokens=job.prompt + 1)


def decode_task(job: Job) -> Task:
    """Computes the other tokens."""
    return Task(job, is_prompt=False, tokens=1, kv_tokens=job.output - 1, steps=job.output - 1)


@dataclass(slots=True)
class Draft:
    """A batch being put together: what is new in it, and how many of the old batch stay."""

    used: int
    room: float
    tasks: list[Task] = field(default_factory=list)
    jobs: set[Job] = field(default_factory=set)
    tokens: int = 0
    kept: int = 0

    def extend(self, tasks: Iterable[Task], *, skip_large: bool = False) -> None:
        """Take tasks in turn until one does not fit; `skip_large`: go on past one whose KV does not."""
        for task in tasks:
            if self.size == MAX_BATCH or (self.size and self.tokens + task.tokens > MAX_TOKENS):
                return
            if task.job in self.jobs:
                continue
            if not task.has_run and self.used + task.kv_tokens > self.room:
                if skip_large:
                    continue
                return
            self._take(task)

    def keep(self, decodes: int) -> None:
        """As many of the old batch as fit; each counts one token, and its KV is there."""
        self.kept = max(0, min(decodes, MAX_BATCH - len(self.tasks), MAX_TOKENS - self.tokens))
        self.tokens += self.kept

    @property
    def size(self) -> int:
        """Requests in it."""
        return len(self.tasks) + self.kept

    def _take(self, task: Task) -> None:
        self.tasks.append(task)
        self.jobs.add(task.job)
        self.tokens += task.tokens
        if not task.has_run:
            self.used += task.kv_tokens


@dataclass(slots=True, eq=False)
class Machine:
    """Runs iterations; a run of equal decode steps is one jump, cut short at a step's end when work arrives."""

    costs: Costs
    room: float  # tokens of KV that fit beside the weights
    home: str = ""  # the pool that it belongs to
    used: int = 0
    booked: int = 0  # KV tokens that placement counts, from placement on
    pending: int = 0  # prompt tokens and decodes that placement counts
    sends_until: float = 0.0
    receives_until: float = 0.0
    until: float = inf  # the end of the present iterations
    version: int = 0
    waiting: list[Task] = field(default_factory=list)  # by (waits, arrival) as they were on entry
    prompts: list[Task] = field(default_factory=list)
    blocked: list[Task] = field(default_factory=list)  # preempted
    batch: list[Task] = field(default_factory=list)
    tasks: dict[Job, list[Task]] = field(default_factory=dict)
    pool: list[Job] = field(default_factory=list)  # jobs here, by arrival
    _tokens: int = 0  # of the batch when it was chosen
    _prompts: list[int] = field(default_factory=list)  # lengths of the prompts in the batch
    _context: int = 0  # tokens in the KV caches of the batch's decodes
    _stepped: int = 0  # decode steps since the beginning
    _starts: int = 0
    _steps: int = 0
    _step_s: float = 0.0
    _growth_s: float = 0.0
    _is_cut: bool = False

    def arrive(self, task: Task, now: float) -> None:
        """Take a task; start at once if idle, else at the next step's end if the batch has room for it."""
        if task.job not in self.tasks:
            insort(self.pool, task.job, key=_arrival)
            self.tasks[task.job] = []
            task.since = self._starts  # behind its own prompt a task is not counted as left out
        self.tasks[task.job].append(task)
        insort(self.waiting, task, key=self._order)
        if task.is_prompt:
            self.prompts.append(task)
        if not self.batch:
            if self.used + task.kv_tokens <= self.room:
                self.start(now)
        elif (len(self.batch) < MAX_BATCH and self._tokens + task.tokens <= MAX_TOKENS) or self._preempts(task):
            self.cut_short(now)

    def _preempts(self, task: Task) -> bool:
        decodes = len(self.batch) - len(self._prompts)
        return task.is_prompt and decodes > 0 and self._tokens - decodes + task.tokens <= MAX_TOKENS

    def nudge(self, now: float) -> None:
        """Memory came free: what waits may fit now."""
        if not self.waiting:
            return
        if not self.batch:
            if self.used + self.waiting[0].kv_tokens <= self.room:
                self.start(now)
        elif len(self.batch) < MAX_BATCH and self._tokens < MAX_TOKENS:
            self.cut_short(now)

    def start(self, now: float) -> None:
        """Choose the next batch and run it: once with prompts in it, else until its first decode ends."""
        self._is_cut = False
        self._prompts = []
        if len(self.pool) > len(self.batch):
            self._choose()
        else:
            self._tokens = len(self.batch)
        self._starts += 1
        self.version += 1
        if not self.batch:
            self.until = inf
            return
        decodes = len(self.batch) - len(self._prompts)
        if self._prompts:
            self._steps, self._growth_s = 1, 0.0
            self._step_s = self.costs.prompt_s(self._prompts, decodes, self._context)
        else:
            self._steps = min([t.end for t in self.batch]) - self._stepped
            self._step_s, self._growth_s = self.costs.step(decodes, self._context)
        self.until = now + self._seconds(self._steps)

    def finish(self) -> list[Task]:
        """Account for the iterations that just ended; the tasks that are done, in the batch's order."""
        self._context += self._steps * (len(self.batch) - len(self._prompts))
        self._stepped += self._steps
        end = self._stepped
        done = [t for t in self.batch if t.is_prompt or t.end == end]
        if done:
            self.batch = [t for t in self.batch if not (t.is_prompt or t.end == end)]
        for task in done:
            self._leave(task)
        return done

    def cut_short(self, now: float) -> None:
        """End a run of decode steps with the present step."""
        if self._is_cut or self._prompts:
            return
        self._is_cut = True
        elapsed = now - (self.until - self._seconds(self._steps))
        self._steps = min(self._whole_steps(elapsed) + 1, self._steps)
        self.until = now + (self._seconds(self._steps) - elapsed)
        self.version += 1

    def _seconds(self, steps: int) -> float:
        return steps * self._step_s + self._growth_s * (steps * (steps - 1) / 2)

    def _whole_steps(self, elapsed: float) -> int:
        if self._growth_s == 0:
            return int(elapsed // self._step_s)
        # The largest k with k·step + growth·k(k − 1)/2 <= elapsed.
        middle = self._step_s - self._growth_s / 2
        return int((sqrt(middle * middle + 2 * self._growth_s * elapsed) - middle) / self._growth_s)

    def _choose(self) -> None:
        draft = Draft(self.used, self.room)
        draft.extend(takewhile(self._is_overdue, self.waiting), skip_large=True)
        draft.extend(self.prompts)
        draft.extend(self.blocked)
        draft.keep(len(self.batch))
        if len(self.pool) - len(self.batch) > len(draft.tasks):
            heads = (self.tasks[job][0] for job in self.pool if job not in draft.jobs)
            draft.extend(head for head in heads if not head.in_batch)
        self._tokens = draft.tokens
        for task in self.batch[draft.kept :]:
            self._preempt(task)
        del self.batch[draft.kept :]
        for task in draft.tasks:
            self._enter(task)

    def _preempt(self, task: Task) -> None:
        task.in_batch = False
        task.steps = task.end - self._stepped
        self._context -= task.context(task.steps)
        task.since = self._starts
        insort(self.waiting, task, key=self._order)
        self.blocked.append(task)

    def _enter(self, task: Task) -> None:
        self.waiting.remove(task)
        task.waits, task.since = self._waits(task), None
        if task.is_prompt:
            self.prompts.remove(task)
            self._prompts.append(task.tokens)
        else:
            task.end = self._stepped + task.steps
            self._context += task.context(task.steps)
        if task.has_run:
            self.blocked.remove(task)
        else:
            task.has_run = True
            self.used += task.kv_tokens
            task.job.kv_held += task.kv_tokens
        task.in_batch = True
        self.batch.append(task)

    def _leave(self, task: Task) -> None:
        if not task.is_prompt:
            self._context -= task.context(0)
        mine = self.tasks[task.job]
        mine.remove(task)
        if mine:
            mine[0].since = self._starts
        else:
            del self.tasks[task.job]
            self.pool.remove(task.job)

    def _waits(self, task: Task) -> int:
        return task.waits if task.since is None else task.waits + self._starts - task.since

    def _is_overdue(self, task: Task) -> bool:
        return self._waits(task) >= MAX_WAITS

    def _order(self, task: Task) -> tuple[int, float]:
        return self._waits(task), task.job.arrived


def _arrival(job: Job) -> float:
    return job.arrived
