"""The decoding requests of one worker, by a virtual step counter: a run of steps changes a few numbers, no request.

A request that joins at step s with r tokens to go ends at step s + r, whatever joins or leaves meanwhile; so a heap of
last steps says how far the batch may run unchanged.
"""

from __future__ import annotations

from bisect import bisect_right
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tandem_operator.simulate.request import Request


class Batch:
    """`steps` done since the worker started, and the `context` that the next step reads, in tokens."""

    __slots__ = ("_crossing", "_ends", "_order", "_page", "context", "size", "steps")

    def __init__(self, page_tokens: int) -> None:
        """Nobody decodes."""
        self.steps = 0
        self.size = 0  # requests that decode
        self.context = 0
        self._ends: list[tuple[int, int, Request]] = []
        self._order = 0
        self._page = page_tokens
        self._crossing = [0] * page_tokens  # how many requests claim a page in the steps of this residue

    @property
    def requests(self) -> list[Request]:
        """Who decodes, in no order that means anything."""
        return [request for _, _, request in self._ends]

    def add(self, request: Request) -> None:
        """From the next step on; it has at least one token to go."""
        request.joined = self.steps
        self._order += 1
        self.size += 1
        heappush(self._ends, (self.steps + request.output - request.generated, self._order, request))
        tokens = request.prompt + request.generated
        self.context += tokens
        self._crossing[(self.steps - tokens) % self._page] += 1

    def advance(self, steps: int) -> list[Request]:
        """So many steps are done; who has ended with them leaves."""
        self.steps += steps
        self.context += steps * self.size
        ends, ended = self._ends, []
        while ends and ends[0][0] <= self.steps:
            request = heappop(ends)[2]
            self._leave(request)
            ended.append(request)
        return ended

    def remove(self, request: Request) -> None:
        """It leaves before its end."""
        self._ends = [one for one in self._ends if one[2] is not request]
        heapify(self._ends)
        self._leave(request)

    def youngest(self) -> Request:
        """The latest arrival: the one that a full memory throws out (older ones have waited longer)."""
        return max(self._ends, key=lambda one: (one[2].arrived, one[1]))[2]

    def growth(self, steps: int) -> int:
        """Pages that the batch claims over the next steps: one a request whenever its tokens fill a page."""
        page, first = self._page, self.steps % self._page
        whole, rest = divmod(steps, page)
        claimed = whole * self.size
        if rest:
            claimed += sum(self._crossing[first : first + rest])
            if first + rest > page:
                claimed += sum(self._crossing[: first + rest - page])
        return claimed

    def at_most(self, steps: int) -> int:
        """A bound of `growth` without counting."""
        return self.size * (steps // self._page + 1)

    def next_steps(self, pages: float) -> int:
        """Steps until the first request ends, or as many of them as so many pages allow."""
        steps = self._ends[0][0] - self.steps
        if self.at_most(steps) <= pages:
            return steps
        return bisect_right(range(1, steps + 1), pages, key=self.growth)

    def _leave(self, request: Request) -> None:
        tokens, done = request.prompt + request.generated, self.steps - request.joined
        self._crossing[(request.joined - tokens) % self._page] -= 1
        request.generated += done
        self.context -= tokens + done
        self.size -= 1
