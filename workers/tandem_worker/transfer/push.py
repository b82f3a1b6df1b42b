"""A prefill worker's half of one transfer: states, events and transitions as data. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class State(StrEnum):
    """Where the request stands on the prefill worker."""

    QUEUED = "queued"  # in the engine's prefill queue
    READY = "ready"  # at its head; waits for a reason to ask (again)
    ASKING = "asking"  # `ticket?` is under way
    PUSHING = "pushing"  # the engine computes, chunks go out
    ENDED = "ended"


class Event(StrEnum):
    """What can happen to it."""

    HEAD = "head"
    ASK = "ask"  # the delay is over and the connection has room
    TICKET = "ticket"
    NO_TICKET = "noticket"
    GIVE_UP = "give-up"  # refused for good, too often, or no answer
    CHUNK = "chunk"
    FIRST = "first"
    DONE = "done"
    FAILED = "failed"  # the engine's word
    CANCEL = "cancel"  # the decode worker's word
    CLOSED = "closed"


class Act(StrEnum):
    """What the prefill worker then does, in this order."""

    ASK = "ask"
    ADMIT = "admit"  # the engine may compute
    STOP = "stop"  # the engine forgets the request
    PUSH = "push"
    SAY_FIRST = "say-first"
    SAY_COMMIT = "say-commit"
    DROP = "drop"  # pages that are not sent yet stay here
    SAY_QUIET = "say-quiet"
    SAY_FAILED = "say-failed"


Moves = Mapping[tuple[State, Event], tuple[State, tuple[Act, ...]]]

_LIVE: Final = (State.QUEUED, State.READY, State.ASKING, State.PUSHING)

MOVES: Final[Moves] = MappingProxyType({
    (State.QUEUED, Event.HEAD): (State.READY, ()),
    (State.READY, Event.ASK): (State.ASKING, (Act.ASK,)),
    (State.READY, Event.GIVE_UP): (State.ENDED, (Act.STOP, Act.SAY_FAILED)),
    (State.ASKING, Event.TICKET): (State.PUSHING, (Act.ADMIT,)),
    (State.ASKING, Event.NO_TICKET): (State.READY, ()),
    (State.ASKING, Event.GIVE_UP): (State.ENDED, (Act.STOP, Act.SAY_FAILED)),
    (State.PUSHING, Event.FIRST): (State.PUSHING, (Act.SAY_FIRST,)),
    (State.PUSHING, Event.CHUNK): (State.PUSHING, (Act.PUSH,)),
    (State.PUSHING, Event.DONE): (State.ENDED, (Act.SAY_COMMIT,)),
    **{(live, Event.CANCEL): (State.ENDED, (Act.STOP, Act.DROP, Act.SAY_QUIET)) for live in _LIVE},
    **{(live, Event.FAILED): (State.ENDED, (Act.DROP, Act.SAY_FAILED)) for live in _LIVE},
    **{(live, Event.CLOSED): (State.ENDED, (Act.STOP, Act.DROP)) for live in _LIVE},
})  # fmt: skip


def step(state: State, event: Event) -> tuple[State, tuple[Act, ...]]:
    """The state after `event`, and what to do. An event that the state does not know changes nothing: it is late."""
    return MOVES.get((state, event), (state, ()))
