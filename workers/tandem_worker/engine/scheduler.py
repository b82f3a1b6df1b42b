"""What the next step runs. A pure decision over a snapshot; the engine carries it out.

Decodes go first and all together; beside them at most `chunk_tokens` of prefill, so a long prompt delays a decode by
one chunk at most. Prefill is first come, first served among equals; what is urgent overtakes those that have not begun.
When a decode needs a page and none is left, the least urgent sequence, of these the youngest, gives its pages back and
is computed again later (recompute keeps its tokens).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_ASKED = 8  # prefill halves that may stand at the head without a ticket at once; they hold pages elsewhere


@dataclass(slots=True)  # not frozen: one for each of them in every step, and that would take six times as long
class Decoding:
    """A sequence that decodes. `age` orders by arrival, small is old; of `priority`, small is urgent."""

    id: str
    age: int
    needs_page: bool
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Prefilling:
    """A sequence in the prefill queue. `left` tokens to compute; `need` pages to claim before it starts (0: started).

    `ticket` is "none" for a whole job, else "unasked", "asked", "granted", or "deferred": no room there.
    """

    id: str
    age: int
    left: int
    need: int
    started: bool
    ticket: str = "none"
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Bounds:
    """The settings that bound a step."""

    chunk_tokens: int
    max_batch: int
    ahead: int = 0  # tokens that a decode may be guessed ahead, where pages are plenty


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: who decodes, whose prompt goes on by how many tokens, who gives pages back, who is at the head."""

    decode: tuple[str, ...] = ()
    prefill: tuple[tuple[str, int], ...] = ()
    preempt: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()


def plan_step(decoding: Sequence[Decoding], queue: Sequence[Prefilling], free_pages: int, bounds: Bounds) -> StepPlan:
    """The next step. `queue` in the order of service; `free_pages` as the pool could give them now."""
    ask = _heads_to_ask(queue, bounds)
    short = sum(one.needs_page for one in decoding) - free_pages
    if short > 0:
        # One victim a step: its pages are known to be back before anything else is decided.
        holders: list[Decoding | Prefilling] = [*decoding, *(one for one in queue if one.started)]
        victim = max(holders, key=lambda one: (one.priority, one.age))
        return StepPlan(preempt=(victim.id,), ask=ask)
    # One spare page for every decode, or a started prompt would be thrown out again at the next page's end.
    free = free_pages - sum(one.needs_page for one in decoding) - len(decoding)
    prefill = _prefill(queue, free, bounds.max_batch - len(decoding), bounds.chunk_tokens)
    return StepPlan(decode=tuple(one.id for one in decoding), prefill=prefill, ask=ask)


def _prefill(queue: Sequence[Prefilling], free: int, seats: int, budget: int) -> tuple[tuple[str, int], ...]:
    """In order until the budget, the seats or the pages are used up; who waits for a ticket is passed over."""
    chosen: list[tuple[str, int]] = []
    seats -= sum(one.started and one.ticket == "none" for one in queue)
    for one in queue:
        if budget <= 0:
            break
        if one.ticket in ("unasked", "asked", "deferred"):
            continue
        if not one.started:
            if one.need > free or (one.ticket == "none" and seats <= 0):
                break  # no overtaking: a long prompt would wait for ever
            free -= one.need
            seats -= one.ticket == "none"
        tokens = min(one.left, budget)
        chosen.append((one.id, tokens))
        budget -= tokens
    return tuple(chosen)


def _heads_to_ask(queue: Sequence[Prefilling], bounds: Bounds) -> tuple[str, ...]:
    """Who is near enough to the head: two chunks of granted work hide a ticket's round trip."""
    asked = sum(one.ticket == "asked" for one in queue)
    ahead = 0
    heads: list[str] = []
    for one in queue:
        if ahead >= 2 * bounds.chunk_tokens or asked + len(heads) >= MAX_ASKED:
            break
        if one.ticket == "unasked":
            heads.append(one.id)
        if one.ticket not in ("asked", "deferred"):
            ahead += one.left
    return tuple(heads)
