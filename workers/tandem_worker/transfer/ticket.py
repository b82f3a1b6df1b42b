"""A decode worker's promise of pages to one transfer: states, events, transitions as data. Pure: `now` is an argument.

Seconds are of the decode worker's monotonic clock; no wall time and nobody else's clock is ever compared with them.
docs/reference/transfer.md says the same in words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from tandem_worker.transfer.base import Fence
from tandem_worker.transfer.wire import Generation


class State(StrEnum):
    """What the decode worker owes and holds."""

    ASKED = "asked"  # prefill was requested; no pages are held
    OPEN = "open"  # pages are reserved, the lease runs
    FIRST = "first"  # as OPEN, and the client has its first token
    QUARANTINED = "quarantined"  # over, but the writer has not said that nothing is in flight
    COMMITTED = "committed"  # the pages belong to the engine's request
    ENDED = "ended"  # every page is given back


class Event(StrEnum):
    """What can happen to a ticket."""

    GRANT = "grant"  # the writer asked, and there was room
    CHUNK = "chunk"
    FIRST_TOKEN = "first"  # noqa: S105 - a message's name
    COMMIT = "commit"  # with every page there
    FAILED = "failed"  # the writer's last word
    QUIET = "quiet"  # the writer's word: nothing is in flight
    CANCEL = "cancel"  # nobody wants the answer any more, or it ended at its first token
    BROKEN = "broken"  # lease or deadline over, commit with pages missing
    CLOSED = "closed"  # the connection is gone
    REVOKED = "revoked"  # the memory key is gone


class Act(StrEnum):
    """What the decode worker then does, in this order."""

    RENEW = "renew"  # the lease starts anew
    WRITE = "write"  # copy the chunk into the reserved pages
    EMIT = "emit"  # the first token to the client
    COMMIT = "commit"  # the engine decodes on
    RELEASE = "release"  # reserved pages are free at once
    QUARANTINE = "quarantine"  # reserved pages are nobody's until the fence
    UNQUARANTINE = "unquarantine"
    TELL_WRITER = "tell-writer"  # send `cancel`
    TELL_CLIENT = "tell-client"  # the request failed


Moves = Mapping[tuple[State, Event], tuple[State, tuple[Act, ...]]]

_STOP: Final = (Act.TELL_WRITER, Act.QUARANTINE)
_HELD: Final = (State.OPEN, State.FIRST)

MOVES: Final[Moves] = MappingProxyType({
    (State.ASKED, Event.GRANT): (State.OPEN, (Act.RENEW,)),
    (State.ASKED, Event.CANCEL): (State.ENDED, (Act.TELL_WRITER,)),
    (State.ASKED, Event.BROKEN): (State.ENDED, (Act.TELL_WRITER, Act.TELL_CLIENT)),
    (State.ASKED, Event.FAILED): (State.ENDED, (Act.TELL_CLIENT,)),
    (State.ASKED, Event.QUIET): (State.ENDED, (Act.TELL_CLIENT,)),
    (State.ASKED, Event.CLOSED): (State.ENDED, (Act.TELL_CLIENT,)),
    (State.OPEN, Event.FIRST_TOKEN): (State.FIRST, (Act.RENEW, Act.EMIT)),
    (State.FIRST, Event.COMMIT): (State.COMMITTED, (Act.COMMIT,)),
    **{(held, Event.CHUNK): (held, (Act.WRITE, Act.RENEW)) for held in _HELD},
    **{(held, Event.CANCEL): (State.QUARANTINED, _STOP) for held in _HELD},
    **{(held, Event.BROKEN): (State.QUARANTINED, (*_STOP, Act.TELL_CLIENT)) for held in _HELD},
    **{(held, Event.FAILED): (State.ENDED, (Act.RELEASE, Act.TELL_CLIENT)) for held in _HELD},
    **{(held, Event.QUIET): (State.ENDED, (Act.RELEASE, Act.TELL_CLIENT)) for held in _HELD},
    # Whether a lost connection also stops the writer is the backend's fence: see `step`.
    **{(held, Event.CLOSED): (State.QUARANTINED, (Act.QUARANTINE, Act.TELL_CLIENT)) for held in _HELD},
    (State.QUARANTINED, Event.QUIET): (State.ENDED, (Act.UNQUARANTINE,)),
    (State.QUARANTINED, Event.FAILED): (State.ENDED, (Act.UNQUARANTINE,)),
})  # fmt: skip

# Besides the writer's word: what proves that no write can land any more.
FENCES: Final[Mapping[Fence, frozenset[Event]]] = MappingProxyType({
    Fence.MESSAGE: frozenset(),
    Fence.CONNECTION: frozenset({Event.CLOSED, Event.REVOKED}),
    Fence.KEY: frozenset({Event.REVOKED}),
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ticket:
    """One transfer. Pages [first_page, pages) of the prompt are to arrive; `arrived` is their bitmask."""

    request: str
    generation: Generation
    ends_at: float  # monotonic seconds; the deadline while ASKED, the lease's end later
    lease_s: float
    fence: Fence = Fence.CONNECTION
    state: State = State.ASKED
    first_page: int = 0
    pages: int = 0
    arrived: int = 0

    @property
    def over(self) -> bool:
        """Nothing is held and nothing is owed: the ticket can be forgotten."""
        return self.state in {State.COMMITTED, State.ENDED}

    @property
    def complete(self) -> bool:
        """Has every promised page arrived?"""
        return self.arrived == (1 << self.pages) - (1 << self.first_page)

    def fits(self, first_page: int, count: int) -> bool:
        """Do these pages lie inside the promise?"""
        return self.first_page <= first_page and first_page + count <= self.pages

    def with_pages(self, first_page: int, pages: int) -> Ticket:
        """The promise's extent, known when it is granted."""
        return replace(self, first_page=first_page, pages=pages)

    def with_arrived(self, first_page: int, count: int) -> Ticket:
        """Twice is harmless: a bit is set once."""
        return replace(self, arrived=self.arrived | (((1 << count) - 1) << first_page))


def step(ticket: Ticket, event: Event, now: float) -> tuple[Ticket, tuple[Act, ...]]:
    """The ticket after `event`, and what to do. An event that the state does not know changes nothing: it is stale."""
    if event is Event.COMMIT and ticket.state in _HELD and not (ticket.complete and ticket.state is State.FIRST):
        event = Event.BROKEN
    state, acts = _move(ticket, event)
    if Act.RENEW in acts:
        ticket = replace(ticket, ends_at=now + ticket.lease_s)
    return replace(ticket, state=state), acts


def _move(ticket: Ticket, event: Event) -> tuple[State, tuple[Act, ...]]:
    fenced = event in FENCES[ticket.fence]
    if fenced and ticket.state in _HELD:
        return State.ENDED, (Act.RELEASE, Act.TELL_CLIENT)
    if fenced and ticket.state is State.QUARANTINED:
        return State.ENDED, (Act.UNQUARANTINE,)
    return MOVES.get((ticket.state, event), (ticket.state, ()))


def is_due(ticket: Ticket, now: float) -> bool:
    """Has its deadline or lease run out? A quarantined ticket waits for its fence alone: time proves nothing."""
    return ticket.state in {State.ASKED, *_HELD} and now >= ticket.ends_at
