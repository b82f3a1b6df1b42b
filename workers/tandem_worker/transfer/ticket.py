"""A decode worker's promise of pages to one transfer: states, events, transitions as data. Pure: `now` is an argument.

Seconds are of the decode worker's monotonic clock; no wall time and nobody else's clock is ever compared with them.
docs/reference/transfer.md is made of the tables here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from tandem_worker.transfer.base import Fence
from tandem_worker.transfer.table import Move, Table, Timer, Word
from tandem_worker.transfer.wire import AskTicket, Chunk, Commit, Failed, First, Generation, Message, Quiet, Waits

LEASE_S: Final = 30.0  # between two signs of progress of one transfer
QUARANTINE_S: Final = 10.0  # a writer that lives says `quiet` within a step; one that is stopped says nothing
QUARANTINE_SHARE: Final = 0.25  # of all pages: with more in quarantine, the writers that are silent longest are cut off
RETRY_MS: Final = 250


class State(Word):
    """What the decode worker owes and holds."""

    ASKED = "asked", "prefill was requested; no pages are held"
    OPEN = "open", "pages are reserved, the lease runs"
    FIRST = "first", "as open, and the client has its first token"
    QUARANTINED = "quarantined", "over, but the writer has not said that nothing is in flight: its pages are nobody's"
    CUT = "cut", "as quarantined, and the writer was silent for too long: its connection and key are ended for good"
    COMMITTED = "committed", "the pages belong to the engine's request"
    ENDED = "ended", "every page is given back"


class Event(Word):
    """What can happen to a ticket."""

    GRANT = "grant", "P asked, and there was room"
    CHUNK = "chunk", "pages inside the ticket came"
    WAITS = "waits", "P's engine went on, with others before this one"
    FIRST_TOKEN = "first", "P sampled the first token"
    COMMIT = "commit", "P has sent everything, and everything is here"
    SHORT = "short", "a commit came with pages or the first token missing"
    FAILED = "failed", "P's last word: it ended without its end"
    QUIET = "quiet", "P's word: nothing is in flight any more"
    CANCEL = "cancel", "nobody wants the answer any more, or it ended at its first token"
    BROKEN = "broken", "deadline or lease over, or pages that the engine refused"
    OVERDUE = "overdue", "quarantined for too long, or too many pages are"
    CLOSED = "closed", "the connection is gone, which proves nothing about this backend's writes"
    REVOKED = "revoked", "the memory key is gone, which proves nothing about this backend's writes"
    FENCED = "fenced", "the backend's fence: proof that no write can land any more"


class Act(Word):
    """What the decode worker then does, in this order."""

    RENEW = "renew", "the lease starts anew"
    WRITE = "write", "the chunk is in the reserved pages"
    EMIT = "emit", "the first token to the client"
    COMMIT = "commit", "the engine decodes on"
    RELEASE = "release", "reserved pages are free at once"
    QUARANTINE = "quarantine", "reserved pages are nobody's until the fence"
    UNQUARANTINE = "unquarantine", "they are free"
    TELL_WRITER = "tell-writer", "send `cancel`"
    TELL_CLIENT = "tell-client", "the request failed"
    REVOKE = "revoke", "end the connection's memory key, where the backend has one"
    CUT_OFF = "cut-off", "close the connection, end its memory key, and say so in log and metric"


_STOP: Final = (Act.TELL_WRITER, Act.QUARANTINE)
_HELD: Final = (State.OPEN, State.FIRST)
_OVER: Final = (State.QUARANTINED, State.CUT)
_FREE: Final = Move(State.ENDED, (Act.RELEASE, Act.TELL_CLIENT))
_LOST: Final = Move(State.ENDED, (Act.TELL_CLIENT,))
_SAFE: Final = Move(State.ENDED, (Act.UNQUARANTINE,))

TABLE: Final[Table[State, Event, Act]] = Table(
    moves=MappingProxyType({
        (State.ASKED, Event.GRANT): Move(State.OPEN, (Act.RENEW,)),
        (State.ASKED, Event.CANCEL): Move(State.ENDED, (Act.TELL_WRITER,)),
        (State.ASKED, Event.BROKEN): Move(State.ENDED, (Act.TELL_WRITER, Act.TELL_CLIENT)),
        **{(State.ASKED, end): _LOST for end in (Event.FAILED, Event.QUIET, Event.CLOSED, Event.FENCED)},
        (State.OPEN, Event.WAITS): Move(State.OPEN, (Act.RENEW,)),
        (State.OPEN, Event.FIRST_TOKEN): Move(State.FIRST, (Act.RENEW, Act.EMIT)),
        (State.FIRST, Event.COMMIT): Move(State.COMMITTED, (Act.COMMIT,)),
        **{(held, Event.CHUNK): Move(held, (Act.WRITE, Act.RENEW)) for held in _HELD},
        **{(held, Event.CANCEL): Move(State.QUARANTINED, _STOP) for held in _HELD},
        **{(held, Event.BROKEN): Move(State.QUARANTINED, (*_STOP, Act.TELL_CLIENT)) for held in _HELD},
        **{(held, Event.SHORT): Move(State.QUARANTINED, (*_STOP, Act.TELL_CLIENT)) for held in _HELD},
        **{(held, Event.CLOSED): Move(State.QUARANTINED, (Act.QUARANTINE, Act.TELL_CLIENT, Act.REVOKE))
           for held in _HELD},
        **{(held, end): _FREE for held in _HELD for end in (Event.FAILED, Event.QUIET, Event.FENCED)},
        (State.QUARANTINED, Event.CLOSED): Move(State.QUARANTINED, (Act.REVOKE,)),
        (State.QUARANTINED, Event.OVERDUE): Move(State.CUT, (Act.CUT_OFF,)),
        (State.CUT, Event.CLOSED): Move(State.CUT, (Act.REVOKE,)),
        **{(over, end): _SAFE for over in _OVER for end in (Event.FAILED, Event.QUIET, Event.FENCED)},
    }),
    timers=MappingProxyType({
        State.ASKED: Timer("`--prefill-timeout`", Event.BROKEN),
        State.OPEN: Timer(f"the lease, {LEASE_S:.0f} s", Event.BROKEN),
        State.FIRST: Timer(f"the lease, {LEASE_S:.0f} s", Event.BROKEN),
        State.QUARANTINED: Timer(f"{QUARANTINE_S:.0f} s", Event.OVERDUE),
    }),
)  # fmt: skip

# Besides the writer's word: what proves that no write can land any more.
FENCES: Final[Mapping[Fence, frozenset[Event]]] = MappingProxyType({
    Fence.MESSAGE: frozenset(),
    Fence.CONNECTION: frozenset({Event.CLOSED, Event.REVOKED}),
    Fence.KEY: frozenset({Event.REVOKED}),
})  # fmt: skip

# What a prefill worker may say, and the event that it is here.
HEARD: Final[Mapping[type[Message], Event]] = MappingProxyType({
    AskTicket: Event.GRANT,
    Waits: Event.WAITS,
    First: Event.FIRST_TOKEN,
    Chunk: Event.CHUNK,
    Commit: Event.COMMIT,
    Quiet: Event.QUIET,
    Failed: Event.FAILED,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ticket:
    """One transfer. Pages [first_page, pages) of the prompt are to arrive; `arrived` is their bitmask."""

    request: str
    generation: Generation
    ends_at: float  # monotonic seconds: the end of what `TABLE.timers` bounds the state by
    lease_s: float
    fence: Fence = Fence.CONNECTION
    state: State = State.ASKED
    first_page: int = 0
    pages: int = 0
    arrived: int = 0
    quarantine_s: float = QUARANTINE_S

    @property
    def over(self) -> bool:
        """Nothing is held and nothing is owed: the ticket can be forgotten."""
        return self.state in {State.COMMITTED, State.ENDED}

    @property
    def complete(self) -> bool:
        """Has every promised page arrived?"""
        return self.arrived == (1 << self.pages) - (1 << self.first_page)

    @property
    def own_pages(self) -> int:
        """Pages that the writer was told to write."""
        return self.pages - self.first_page

    def fits(self, first_page: int, count: int) -> bool:
        """Do these pages lie inside the promise?"""
        return self.first_page <= first_page and first_page + count <= self.pages

    def with_pages(self, first_page: int, pages: int) -> Ticket:
        """The promise's extent, known when it is granted."""
        return replace(self, first_page=first_page, pages=pages)

    def with_arrived(self, first_page: int, count: int) -> Ticket:
        """Twice is harmless: a bit is set once."""
        return replace(self, arrived=self.arrived | (((1 << count) - 1) << first_page))


def meaning(ticket: Ticket, event: Event) -> Event:
    """What an event is for this very ticket: a commit may be short, and an end may be the backend's fence."""
    if event is Event.COMMIT and ticket.state in _HELD and not (ticket.complete and ticket.state is State.FIRST):
        return Event.SHORT
    return Event.FENCED if event in FENCES[ticket.fence] else event


def may(ticket: Ticket, event: Event) -> bool:
    """Does the table know this event in the ticket's state?"""
    return TABLE.find(ticket.state, meaning(ticket, event)) is not None


def step(ticket: Ticket, event: Event, now: float) -> tuple[Ticket, tuple[Act, ...]]:
    """The ticket after `event`, and what to do. An event that the table lacks changes nothing."""
    move = TABLE.find(ticket.state, meaning(ticket, event))
    if move is None:
        return ticket, ()
    ends_at = ticket.ends_at
    if Act.RENEW in move.acts:
        ends_at = now + ticket.lease_s
    elif Act.QUARANTINE in move.acts:
        ends_at = now + ticket.quarantine_s
    return replace(ticket, state=move.then, ends_at=ends_at), move.acts


def due(ticket: Ticket, now: float) -> Event | None:
    """What time alone brings about now, if anything. Time never frees a page: it only ends a promise, or a writer."""
    timer = TABLE.timers.get(ticket.state)
    return timer.event if timer is not None and now >= ticket.ends_at else None
