"""Where a transfer can be when somebody dies: a row for each state of either side, and what its client then hears.

Every row is a cut of the connection (test_ends.py), a kill -9 of either worker (test_kills.py), on every backend;
docs/reference/kills.md is made of the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from tandem_worker.transfer import push, ticket
from tandem_worker.transfer.backends import NAMES
from workers.tests.transfer.arranged import USUAL, Facts
from workers.tests.transfer.gate import Hold

D, P = ticket.State, push.State
BESIDE = tuple(name for name in NAMES if name != "tcp")
PATIENT = ("nixl", "mooncake")  # a read of theirs ends with its peer, and not before
FALLS = ("nixl",)  # over TCP: a reader that dies in the middle of a read takes its writer along, by UCX's `ucs_fatal`


class Client(StrEnum):
    """What whoever asked the decode worker for a stream has got in the end."""

    RETRY = "503 `pair`"
    BROKEN = "its tokens so far, an error event"
    SERVED = "all tokens"
    LEFT = "had left"
    LOST = "its connection ends"


@dataclass(frozen=True)
class Row:
    """At these holds the decode worker's ticket and the prefill worker's push are in these states.

    `prefill` None: nothing of it is there yet, or any more.
    `leaves`: once both are in these states, the client leaves. `only`: the backends that can be here.
    """

    name: str
    decode: D
    prefill: P | None
    holds: tuple[Hold, ...]
    prefill_dies: Client
    decode_dies: Client = Client.LOST
    facts: Facts = USUAL
    leaves: tuple[D, P] | None = None
    only: tuple[str, ...] = NAMES
    stopped: bool = False  # the prefill worker is stopped (SIGSTOP) in it: only real processes get here

    @property
    def half(self) -> bool:
        """In the middle of a frame?"""
        return HALF in self.holds

    @property
    def decodes(self) -> bool:
        """Does the decode worker's engine write on meanwhile? Then the answer has to be long enough."""
        return self.decode is D.COMMITTED


RETRY, BROKEN, SERVED, LEFT = Client.RETRY, Client.BROKEN, Client.SERVED, Client.LEFT
NO_DONE, NO_HEAD = Facts(deaf="on_done"), Facts(deaf="on_head")
NOT_TAKEN, NO_COMMIT = Hold("D", "taken", "drop"), Hold("P", "commit")
NO_CANCEL, NO_QUIET = Hold("D", "cancel"), Hold("P", "quiet")
HALF = Hold("P", "chunk", "half")
PUSHED, SENT = (D.FIRST, P.PUSHING), (D.FIRST, P.SENDING)

ROWS = (
    Row("asked, not heard", D.ASKED, None, (Hold("D", "prefill"),), RETRY),
    Row("asked, queued", D.ASKED, P.QUEUED, (), RETRY, facts=NO_HEAD),
    Row("asked, ready", D.ASKED, P.READY, (), RETRY, facts=Facts(full=True)),
    Row("asked, asking", D.ASKED, P.ASKING, (Hold("P", "ticket?"),), RETRY),
    Row("open, asking", D.OPEN, P.ASKING, (Hold("D", "ticket"),), RETRY),
    Row("open, pushing", D.OPEN, P.PUSHING, (Hold("P", "chunk"), Hold("P", "first")), RETRY, facts=NO_DONE),
    Row("open, in mid-page", D.OPEN, P.PUSHING, (HALF, Hold("P", "first")), RETRY, facts=NO_DONE),
    Row("first, pushing", D.FIRST, P.PUSHING, (), BROKEN, facts=NO_DONE),
    Row("first, sending", D.FIRST, P.SENDING, (NOT_TAKEN, NO_COMMIT), BROKEN),
    Row("first, commit under way", D.FIRST, None, (NO_COMMIT,), BROKEN),
    Row("cancelled, pushing", D.QUARANTINED, P.PUSHING, (NO_CANCEL,), LEFT, LEFT, NO_DONE, PUSHED),
    Row("cancelled, sending", D.QUARANTINED, P.SENDING, (NOT_TAKEN, NO_COMMIT, NO_CANCEL), LEFT, LEFT, leaves=SENT),
    Row("cancelled, leaving", D.QUARANTINED, P.LEAVING, (NOT_TAKEN, NO_QUIET), LEFT, LEFT, NO_DONE, PUSHED),
    Row("cancelled, quiet under way", D.QUARANTINED, None, (NO_QUIET,), LEFT, LEFT, NO_DONE, PUSHED),
    Row("committed, sending", D.COMMITTED, P.SENDING, (NOT_TAKEN,), SERVED, only=("tcp",)),
    Row("committed, ended", D.COMMITTED, P.ENDED, (), SERVED),
    Row("ended, ended", D.ENDED, P.ENDED, (), SERVED, SERVED),
    Row("cut off, stopped in mid-page", D.CUT, P.PUSHING, (HALF, Hold("P", "first")), RETRY, RETRY,
        facts=NO_DONE, only=PATIENT, stopped=True),
)  # fmt: skip

# Why a state has no row on a backend: there it does not last.
PASSED = {
    **{(D.CUT, name): "nothing lands after the connection, or it is over in a moment"
       for name in NAMES if name not in PATIENT},
}  # fmt: skip


ROW = {row.name: row for row in ROWS}
LEASE_S = 6.0  # of tickets where somebody is stopped for longer than it; a silence ends a connection after 5 s


@dataclass(frozen=True)
class Stop:
    """SIGSTOP of a worker in this row, for longer than the lease and a silence may last, and SIGCONT.

    `held`: the backends with which the other one holds quarantined pages meanwhile, and has cut the writer off.
    """

    row: str
    victim: str  # "p" or "d"
    held: tuple[str, ...] = ()


STOPS = (
    Stop("asked, asking", "p"),
    Stop("asked, asking", "d"),
    Stop("open, pushing", "p"),
    Stop("open, pushing", "d"),
    Stop("open, in mid-page", "p", held=PATIENT),
    Stop("open, in mid-page", "d"),
)


def rows_of(*backends: str) -> Iterator[tuple[str, Row]]:
    """Each backend with each of its rows."""
    return ((name, row) for name in backends for row in ROWS if name in row.only)


def is_at(row: Row, decode: list[str], prefill: list[str]) -> bool:
    """Are the two sides, whose states these are, where the row has them? What is over is not there any more."""
    wanted = [[] if state in {None, "ended"} else [str(state)] for state in (row.decode, row.prefill)]
    return [decode, prefill] == wanted
