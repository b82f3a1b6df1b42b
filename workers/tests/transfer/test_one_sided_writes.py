"""Both sides with a writer whose writes go straight to memory, and that nothing can call back."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tandem_worker.transfer.base import Fence
from tandem_worker.transfer.wire import Chunk, TicketGranted
from workers.tests.transfer.sides_machine import Machine
from workers.tests.transfer.sides_world import Wire


class Posted:
    """A write that is under way to pages of the decode worker, by their addresses: nothing can call it back."""

    def __init__(self, generation, chunk, content, request, pages, addresses):
        self.generation, self.chunk, self.content = generation, chunk, content
        self.request, self.pages, self.addresses = request, pages, addresses


class OneSidedWire(Wire):
    """The prefill worker's end where pages are written straight into the decode worker's memory.

    A chunk is named, and a last word leaves, only once its writes are known to have landed.
    """

    def __init__(self, fence, machine, reader):
        super().__init__(fence)
        self.machine, self.reader = machine, reader
        self.posted, self.last = [], {}

    def push(self, generation, message, body=b""):
        if not isinstance(message, Chunk):
            super().push(generation, message, body)
            return
        request, own = self.reader.lent[generation]
        addresses = own[message.first_page : message.first_page + message.pages]
        self.posted.append(Posted(generation, message, bytes(body), request, self.machine.pages, addresses))

    def finish(self, generation, message):
        if any(write.generation == generation for write in self.posted):
            self.last[generation] = message
        else:
            super().finish(generation, message)

    def drop(self, generation):
        super().drop(generation)
        self.last.pop(generation, None)

    def land(self, write):
        """The write reaches memory, unless its key is gone; then the writer hears of it, if it is still there."""
        self.posted.remove(write)
        if not self.reader.revoked:
            for address in write.addresses:
                assert write.pages.owner.get(address) == write.request, "a stale write hit somebody's page"
        if self.alive:
            super().push(write.generation, write.chunk, write.content)
            if write.generation in self.last and not any(one.generation == write.generation for one in self.posted):
                super().finish(write.generation, self.last.pop(write.generation))


class KeyHolder(Wire):
    """The decode worker's end: its tickets give addresses away, and it can end the key that they are good for."""

    def __init__(self, fence, has_key, machine):
        super().__init__(fence, has_key)
        self.machine, self.revoked, self.lent = machine, False, {}

    def send(self, message, body=b""):
        super().send(message, body)
        if isinstance(message, TicketGranted):
            own = list(self.machine.pages.reserved[message.request])
            self.lent[message.generation] = (message.request, own)

    def revoke(self):
        self.revoked = self.has_key
        return self.has_key


class OneSidedMachine(Machine):
    """Writes that nothing can call back land at any time, also after their ticket, connection or worker is gone."""

    fence = Fence.KEY
    has_key = True

    def connect(self):
        if not hasattr(self, "dead_wires"):
            self.dead_wires = []
        self.at_decode = KeyHolder(self.fence, self.has_key, self)
        self.at_prefill = OneSidedWire(self.fence, self, self.at_decode)

    def cut(self):
        self.dead_wires.append(self.at_prefill)
        super().cut()

    def prefill_word_arrives(self, **_):
        """Here words keep their order: a chunk is named once it has landed."""

    @precondition(lambda self: self.at_prefill.out)
    @rule()
    def prefill_word_arrives_in_order(self):
        self.give(self.decode, self.at_decode, self.at_prefill.out.pop(0))

    @precondition(lambda self: any(wire.posted for wire in self.wires()))
    @rule(data=st.data())
    def a_write_lands(self, data):
        wire = data.draw(st.sampled_from([wire for wire in self.wires() if wire.posted]))
        wire.land(data.draw(st.sampled_from(wire.posted)))

    def wires(self):
        return [*self.dead_wires, self.at_prefill]

    def deliver_all(self, count):
        for _ in range(count):
            if self.at_prefill.posted:
                self.at_prefill.land(self.at_prefill.posted[0])
            super().deliver_all(1)

    def settle(self):
        while self.at_prefill.posted:
            self.at_prefill.land(self.at_prefill.posted[0])
        super().settle()


OneSidedMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestOneSidedWrites = OneSidedMachine.TestCase


def a_stale_write(machine):
    """A write is posted, its connection is cut, its pages are somebody else's; then it lands."""
    machine.begin()
    machine.ask(4)
    machine.decode_word_arrives()
    (key,) = machine.computer.sinks
    machine.compute_one(key)  # at the head: asks for a ticket
    machine.prefill_word_arrives_in_order()
    machine.decode_word_arrives()
    machine.compute_one(key)  # the first page is on its way
    machine.cut()
    machine.ask(24)
    machine.all_goes_well(4)
    for write in list(machine.dead_wires[0].posted):
        machine.dead_wires[0].land(write)


def test_a_stale_write_lands_nowhere_once_its_key_is_gone():
    a_stale_write(OneSidedMachine())


def test_the_model_notices_a_backend_that_claims_a_fence_which_it_has_not():
    class Liar(OneSidedMachine):
        fence = Fence.CONNECTION

    with pytest.raises(AssertionError, match="a stale write hit"):
        a_stale_write(Liar())
