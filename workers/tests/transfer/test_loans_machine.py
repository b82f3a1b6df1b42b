"""Pages that are read in place: whatever order words, reads and ends come in, nothing is committed that was not lent.

The machine of both sides, where a frame's content is what lies in the prefill worker's pages at the moment of reading:
another prompt's, once the loan has ended. And the prefill worker may give a connection up long before the decode worker
hears of it, which reads on meanwhile.
"""

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tandem_worker.transfer.base import Fence
from tandem_worker.transfer.wire import Chunk, Commit
from workers.tests.transfer.sides_machine import Machine
from workers.tests.transfer.sides_world import Pages, Wire

OTHERS = b"another prompt's"


class TrustingPages(Pages):
    """Written with whatever lies at the other side; what counts is what is committed."""

    def fill(self, id, places, content):  # noqa: A002
        for page, position in places:
            assert self.owner.get(page) == id, "a page that is somebody else's, or nobody's, was written"
            self.written[page] = (content, position)


@dataclass
class Lent:
    """A page of the prefill worker."""

    prompt: bytes
    count: int = 1
    over: bool = False

    @property
    def content(self):
        return self

    def __len__(self):
        return 1

    def __bytes__(self):
        return OTHERS if self.over else self.prompt

    def end(self):
        self.over = True


class LendingWire(Wire):
    """The prefill worker's end, as `Link` with a lane: loans end by `taken`, `drop` or the end; a last word waits."""

    waits = True

    def __init__(self, fence):
        super().__init__(fence)
        self.loans = {}  # generation → those that are named or wait
        self.last = {}

    def push(self, generation, message, body=b""):
        if isinstance(message, Chunk):
            self.loans.setdefault(generation, []).append(body)
            self.out.append((generation, message, body))
        else:
            super().push(generation, message, body)

    def finish(self, generation, message):
        if self.waits and self.loans.get(generation):
            self.last[generation] = message
        else:
            super().finish(generation, message)

    def drop(self, generation):
        if not self.alive:  # what it said has left
            return
        for item in self.out:
            if item[0] == generation and isinstance(item[2], Lent):
                self.end(generation, item[2])
        self.last.pop(generation, None)
        super().drop(generation)

    def taken(self, generation, loan):
        """The decode worker says so; the word may come after this end has given up."""
        if loan in self.loans.get(generation, ()):
            self.end(generation, loan)
            if not self.loans[generation] and generation in self.last:
                super().finish(generation, self.last.pop(generation))

    def end(self, generation, loan):
        self.loans[generation] = [one for one in self.loans[generation] if one is not loan]
        loan.end()

    def give_up(self):
        """The connection is over, as this end knows."""
        self.alive = False
        for loans in self.loans.values():
            for loan in loans:
                loan.end()
        self.loans.clear()
        self.last.clear()


class LoanMachine(Machine):
    """Words keep their order; reads take their time."""

    fence = Fence.KEY
    has_key = True

    pages_type = TrustingPages
    lend = staticmethod(Lent)
    wire = LendingWire

    def connect(self):
        self.at_decode, self.at_prefill = Wire(self.fence, self.has_key), self.wire(self.fence)

    def cut(self):
        self.at_prefill.give_up()
        super().cut()
        self.old_wires = []  # a connection's bytes are of no other

    @rule()
    def prefill_gives_up(self):
        """What it said arrives still; the decode worker hears of the end with the next cut."""
        self.at_prefill.give_up()
        self.prefill.on_closed(self.at_prefill, "given up")

    def give(self, side, end, item, *, slow=False):
        generation, message, loan = item
        if side is self.prefill and not end.alive:
            return
        if not isinstance(message, Chunk):
            super().give(side, end, item)
        elif (places := side.place(end, message)) is None:
            self.at_prefill.taken(generation, loan)
        else:
            self.landing.append((message, loan, places))
            if not slow:
                self.land(self.landing[-1])

    def land(self, landing):
        chunk, loan, places = landing
        self.landing.remove(landing)
        self.pages.fill(*places, bytes(loan))
        self.decode.landed(self.at_decode, chunk)
        self.at_prefill.taken(chunk.generation, loan)

    def prefill_word_arrives(self, **_):
        """In order, here."""

    @precondition(lambda self: self.at_prefill.out)
    @rule(slow=st.booleans())
    def prefill_word_arrives_in_order(self, slow):
        self.give(self.decode, self.at_decode, self.at_prefill.out.pop(0), slow=slow)

    def deliver_all(self, count):
        for _ in range(count):
            while self.landing:
                self.land(self.landing[0])
            super().deliver_all(1)

    def settle(self):
        if not self.at_prefill.alive:
            self.cut()
        super().settle()


LoanMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestLoans = LoanMachine.TestCase


def a_commit_ahead_of_a_read(machine):
    """All is computed, the read of the last page is slow, the prefill worker gives up and uses the page anew."""
    machine.begin()
    machine.ask(2)
    machine.decode_word_arrives()
    (key,) = machine.computer.sinks
    machine.compute_one(key)
    machine.prefill_word_arrives_in_order(slow=False)
    machine.decode_word_arrives()
    machine.compute_one(key)
    while machine.at_prefill.out and not isinstance(machine.at_prefill.out[0][1], Commit):
        machine.prefill_word_arrives_in_order(slow=True)
    machine.prefill_gives_up()
    while machine.landing:
        machine.land(machine.landing[0])
    while machine.at_prefill.out:
        machine.prefill_word_arrives_in_order(slow=False)


def test_the_model_notices_a_last_word_that_does_not_wait():
    class Hasty(LendingWire):
        waits = False

    class Faulty(LoanMachine):
        wire = Hasty

    with pytest.raises(AssertionError, match="a page was committed that never came"):
        a_commit_ahead_of_a_read(Faulty())


def test_what_is_read_after_the_prefill_worker_gave_up_is_never_committed():
    machine = LoanMachine()
    a_commit_ahead_of_a_read(machine)
    assert not machine.pages.decoding
