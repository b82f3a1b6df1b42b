"""Passes that read what events brought, and no list: a case's watches, and how their events may go wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from e2e.tables.memory import Case, Object
from tandem_operator.edges.kinds import KINDS
from tandem_operator.loop.handlers import WATCHED, take_event

KIND_OF = {KINDS[kind].plural: kind for kind in WATCHED}


class Event(NamedTuple):
    """One event of a watch."""

    kind: str
    what: str
    item: Object


class Watch:
    """All events of a case since it is watched; `way` says which of them reach the operator before a pass."""

    def __init__(self, case: Case) -> None:
        self.before = list(shown(case))  # what there was
        self.events: list[Event] = []
        self.new: list[Event] = []  # since the last pass
        self.way: Way = in_order
        self._case = case
        case.kube.watch = self._hear
        case.learn = self._tell

    def _hear(self, what: str, plural: str, item: Object) -> None:
        if plural in KIND_OF:
            self.new.append(Event(KIND_OF[plural], what, item))

    async def _tell(self) -> None:
        self.events += self.new
        for kind, what, item in self.way(self):
            take_event(kind, {"type": what, "object": item}, self._case.world.cache, self._case.world.queue)
        self.new = []


Way = Callable[[Watch], list[Event]]


def shown(case: Case) -> Iterator[Event]:
    """All that is watched, as events."""
    for (plural, _, _), item in case.kube.items.items():
        if plural in KIND_OF:
            yield Event(KIND_OF[plural], "MODIFIED", item)


def in_order(watch: Watch) -> list[Event]:
    """As they should come."""
    return watch.new


def and_what_was_before(watch: Watch) -> list[Event]:
    """Each time all is told again as it was when the watch began."""
    return watch.new + watch.before


def twice_and_backwards(watch: Watch) -> list[Event]:
    """Each time all that ever happened, and once more with the newest first and the oldest last."""
    return watch.events + watch.events[::-1]


def without_deletions(watch: Watch) -> list[Event]:
    """What goes is not told."""
    return [event for event in watch.new if event.what != "DELETED"]


def listed(case: Case) -> None:
    """Passes begin with a list again: the resync."""
    case.learn = case.list_all
