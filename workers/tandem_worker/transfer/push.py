"""A prefill worker's half of one transfer: states, events and transitions as data. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tandem_worker.transfer.table import Move, Table, Timer, Word
from tandem_worker.transfer.wire import Cancel, Message, NoTicket, TicketGranted

ASK_TRIES: Final = 120  # `noticket` answers before a request is given up: half a minute at the usual 250 ms
BACKLOG_BYTES: Final = 128 * 1024 * 1024  # with more waiting for a decode worker, no further request of it is started
IN_FLIGHT_AT_MOST: Final = (
    8  # transfers to one decode worker at once: what it keeps waiting is bounded by their prompts
)
# Questions to one decode worker that it has not answered: few, for the engine has not many places for all of them
# (MAX_ASKED in scheduler.py), and one that is frozen answers none. Two: one is under way while the other is answered.
ASKING_AT_MOST: Final = 2
PATIENCE_S: Final = 1.0  # with a question; then another decode worker is asked in its place
# A lease is renewed by a chunk, or else by `waits`: three times in a lease, so that one may come late.
SIGNS_A_LEASE: Final = 3
SIGN_S: Final = 0.1  # between two of them at least, however short a lease it is told
ANSWER_S: Final = 10.0  # a decode worker answers `ticket?` at once or is in trouble


class State(Word):
    """Where the request stands on the prefill worker."""

    QUEUED = "queued", "in the engine's prefill queue"
    READY = "ready", "at its head; waits for a reason to ask (again)"
    ASKING = "asking", "`ticket?` is under way"
    PUSHING = "pushing", "the engine computes, chunks go out"
    SENDING = "sending", "the engine is done; pages or the commit are still on their way"
    LEAVING = "leaving", "over before its end; its last word waits until none of its pages is on its way"
    ENDED = "ended", "nothing of it is left here"


class Event(Word):
    """What can happen to it."""

    HEAD = "head", "the engine would compute it next"
    ASK = "ask", "the delay is over and the connection has room"
    TICKET = "ticket", "D promised pages"
    NO_TICKET = "noticket", "D has no room now"
    GIVE_UP = "give-up", "refused for good, too often, or no answer"
    CHUNK = "chunk", "the engine finished pages"
    WAIT = "wait", "no chunk for a third of D's lease, and the engine went on meanwhile, with others"
    FIRST = "first", "the engine sampled the first token"
    DONE = "done", "the engine has handed everything over"
    SENT = "sent", "the last word has left and D has taken every page"
    FAILED = "failed", "the engine gave it up"
    CANCEL = "cancel", "D does not want it any more"
    CLOSED = "closed", "the connection is gone"


class Act(Word):
    """What the prefill worker then does, in this order."""

    ASK = "ask", "send `ticket?`"
    DEFER = "defer", "the engine passes it over, and asks for others in its place"
    ADMIT = "admit", "the engine may compute"
    STOP = "stop", "the engine forgets the request within one step"
    PUSH = "push", "send the pages"
    SAY_WAITS = "say-waits", "send `waits`"
    SAY_FIRST = "say-first", "send `first`, ahead of all pages that wait"
    SAY_COMMIT = "say-commit", "send `commit` behind the last page"
    DROP = "drop", "pages that are not sent yet stay here"
    SAY_QUIET = "say-quiet", "send `quiet`"
    SAY_FAILED = "say-failed", "send `failed`"


_EARLY: Final = (State.QUEUED, State.READY, State.ASKING)  # no pages yet: a last word need not wait for any
_LATE: Final = (State.PUSHING, State.SENDING, State.LEAVING)
IN_FLIGHT: Final = (State.ASKING, *_LATE)  # what counts against `IN_FLIGHT_AT_MOST`

TABLE: Final[Table[State, Event, Act]] = Table(
    moves=MappingProxyType({
        (State.QUEUED, Event.HEAD): Move(State.READY, (Act.DEFER,)),
        (State.READY, Event.ASK): Move(State.ASKING, (Act.ASK,)),
        (State.READY, Event.GIVE_UP): Move(State.ENDED, (Act.STOP, Act.SAY_FAILED)),
        (State.ASKING, Event.TICKET): Move(State.PUSHING, (Act.ADMIT,)),
        (State.ASKING, Event.NO_TICKET): Move(State.READY, (Act.DEFER,)),
        (State.ASKING, Event.GIVE_UP): Move(State.ENDED, (Act.STOP, Act.SAY_FAILED)),
        (State.PUSHING, Event.WAIT): Move(State.PUSHING, (Act.SAY_WAITS,)),
        (State.PUSHING, Event.FIRST): Move(State.PUSHING, (Act.SAY_FIRST,)),
        (State.PUSHING, Event.CHUNK): Move(State.PUSHING, (Act.PUSH,)),
        (State.PUSHING, Event.DONE): Move(State.SENDING, (Act.SAY_COMMIT,)),
        (State.PUSHING, Event.FAILED): Move(State.LEAVING, (Act.DROP, Act.SAY_FAILED)),
        (State.PUSHING, Event.CANCEL): Move(State.LEAVING, (Act.STOP, Act.DROP, Act.SAY_QUIET)),
        (State.SENDING, Event.CANCEL): Move(State.LEAVING, (Act.DROP, Act.SAY_QUIET)),
        (State.LEAVING, Event.CANCEL): Move(State.LEAVING),
        (State.LEAVING, Event.FAILED): Move(State.LEAVING),
        (State.SENDING, Event.SENT): Move(State.ENDED),
        (State.LEAVING, Event.SENT): Move(State.ENDED),
        **{(early, Event.CANCEL): Move(State.ENDED, (Act.STOP, Act.SAY_QUIET)) for early in _EARLY},
        **{(early, Event.FAILED): Move(State.ENDED, (Act.SAY_FAILED,)) for early in _EARLY},
        **{(early, Event.CLOSED): Move(State.ENDED, (Act.STOP,)) for early in _EARLY},
        **{(late, Event.CLOSED): Move(State.ENDED, (Act.STOP, Act.DROP)) for late in _LATE},
    }),
    timers=MappingProxyType({
        State.READY: Timer("D's `retry_ms`, and room on the connection", Event.ASK),
        State.ASKING: Timer(f"{ANSWER_S:.0f} s", Event.GIVE_UP),
        State.PUSHING: Timer("a third of D's lease, and a step of the engine", Event.WAIT),
    }),
)  # fmt: skip

# What a decode worker may say of a request that is known here, and the event that it is. `prefill` begins one.
HEARD: Final[Mapping[type[Message], Event]] = MappingProxyType({
    TicketGranted: Event.TICKET,
    NoTicket: Event.NO_TICKET,
    Cancel: Event.CANCEL,
})  # fmt: skip


def step(state: State, event: Event) -> tuple[State, tuple[Act, ...]]:
    """The state after `event`, and what to do. An event that the table lacks changes nothing."""
    move = TABLE.find(state, event)
    return (state, ()) if move is None else (move.then, move.acts)
