"""A run of engine iterations in closed form: what one costs grows by the same amount each time.

An iteration is a chunk of the prompt at the head, a decode step of the batch, or one of each (both end with it). A
chunk's attention grows by one chunk's pairs an iteration, a step's context by one token a request, so k iterations last
a·k + b·k·(k-1)/2, and the one that runs at a given moment is the root of a quadratic.
"""

from __future__ import annotations

from math import ceil, sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tandem_operator.simulate.truth import Truth

TOUCH = 1e-9  # of an iteration: who comes this close after a boundary was there in time
NEVER = 1 << 62


class Iterations:
    """The work that a worker has begun: `count` iterations, each a chunk (`chunk` > 0) and a step (`batch` > 0)."""

    __slots__ = (
        "batch",
        "chunk",
        "chunk_by",
        "chunk_first",
        "count",
        "once",
        "saved",
        "step_by",
        "step_first",
        "tokens",
    )

    def __init__(self) -> None:
        """No work."""
        self.chunk = 1  # so that all is cleared
        self.clear()

    def clear(self) -> None:
        """Forget the work that ended."""
        self.count = self.batch = 0
        self.step_first = self.step_by = 0.0
        if self.chunk:
            self.chunk = self.tokens = 0
            self.chunk_first = self.chunk_by = self.once = self.saved = 0.0

    def chunks(self, truth: Truth, before: int, tokens: int, chunk: int, is_fresh: bool) -> None:
        """Compute `tokens` of a prompt in chunks, behind `before` cached or computed ones; the last may be shorter."""
        self.chunk = chunk
        self.tokens = tokens
        self.once = truth.prompt_base_s if is_fresh else 0.0
        self.count = -(-tokens // chunk)
        self.chunk_first = truth.chunk_s(before, chunk)
        self.chunk_by = 2 * truth.prompt_pair_s * chunk * chunk
        if rest := tokens % chunk:
            start = before + tokens - rest
            self.saved = truth.chunk_s(start, chunk) - truth.chunk_s(start, rest)

    def steps(self, truth: Truth, batch: int, context: int, most: int) -> None:
        """Decode with this batch for at most so many steps, beside the chunks if there are any."""
        self.batch = batch
        self.step_first = truth.step_s(batch, context)
        self.step_by = truth.step_context_s * batch
        if not self.chunk:
            self.count = most
        elif most < self.count:
            self.shorten(most)

    def shorten(self, count: int) -> None:
        """End earlier, before the prompt's last chunk."""
        self.count = count
        self.saved = 0.0

    def seconds(self, done: int) -> float:
        """How long the first `done` iterations take."""
        pairs = done * (done - 1) / 2
        total = (self.chunk_first + self.step_first) * done + (self.chunk_by + self.step_by) * pairs
        return total + self.once - (self.saved if done == self.count else 0.0) if done else 0.0

    def chunk_seconds(self, done: int) -> float:
        """The chunks' part of it."""
        if not self.chunk or not done:
            return 0.0
        total = self.once + self.chunk_first * done + self.chunk_by * (done * (done - 1) / 2)
        return total - self.saved if done == self.count else total

    def step_seconds(self, done: int) -> float:
        """The steps' part of it."""
        return self.step_first * done + self.step_by * (done * (done - 1) / 2)

    def computed(self, done: int) -> int:
        """Prompt tokens that the first `done` iterations compute."""
        return min(done * self.chunk, self.tokens)

    def ending_by(self, seconds: float) -> int:
        """The first iteration, counted from 1, whose end is not before `seconds`; it may lie beyond `count`."""
        first, by, left = self.chunk_first + self.step_first, self.chunk_by + self.step_by, seconds - self.once
        if left <= first:
            return 1
        half = first - by / 2
        below = half + sqrt(half * half + 2 * by * left)
        return max(ceil(2 * left / below - TOUCH), 1) if below > 0 else NEVER
