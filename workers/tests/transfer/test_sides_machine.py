"""Both sides against a model of page ownership, under any interleaving: reorder, duplicates, cancels, time, restarts.

The network here is worse than TCP: messages overtake each other and come twice. The model (`Pages`) fails at once if a
page is written by, or handed to, anybody but its owner; at the end every page must be free again.
"""

# ruff: noqa: A002 (a request's or token's id is called id, as in the engine)

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tandem_worker.engine import Reservation, Sampling, Shortage, Token
from tandem_worker.transfer.base import Fence, Meter
from tandem_worker.transfer.decode_side import DecodeSide
from tandem_worker.transfer.prefill_side import PrefillSide
from tandem_worker.transfer.ticket import State
from tandem_worker.transfer.wire import Chunk, TicketGranted, WireError

PAGE_TOKENS = 2
ALL_PAGES = 12
SAMPLING = Sampling(max_tokens=5)


@dataclass
class Pages:
    """The decode worker's engine, as far as pages go: who owns each, and what was written where."""

    owner: dict[int, str] = field(default_factory=dict)
    reserved: dict[str, list[int]] = field(default_factory=dict)
    quarantined: dict[str, list[int]] = field(default_factory=dict)
    decoding: dict[str, list[int]] = field(default_factory=dict)
    written: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    prompts: dict[str, bytes] = field(default_factory=dict)

    def match(self, prompt):
        return 0

    def reserve(self, id, prompt, sampling):
        assert id not in self.reserved
        need = -(-len(prompt) // PAGE_TOKENS)
        free = [page for page in range(ALL_PAGES) if page not in self.owner]
        if need > len(free):
            return Shortage(need, len(free))
        self.reserved[id] = free[:need]
        self.prompts[id] = bytes(prompt)
        for page in free[:need]:
            self.owner[page] = id
            self.written.pop(page, None)
        return Reservation(id, 0, need)

    def open_pages(self, id, first_page, count):
        # The real engine refuses this with ReservationError; the ticket must not even try.
        assert id in self.reserved, "a write was tried after the ticket's end"
        return id, [(page, first_page + n) for n, page in enumerate(self.reserved[id][first_page : first_page + count])]

    def fill(self, id, places, content):
        """The bytes come to where they were told to go, whatever has happened to the ticket since."""
        assert content == self.prompts[id], "another prompt's pages were written"
        for page, position in places:
            assert self.owner.get(page) == id, "a page that is somebody else's, or nobody's, was written"
            assert id not in self.decoding, "a page was written after its commit"
            self.written[page] = (content, position)

    def pages_written(self, id, first_page, count):
        assert id in self.reserved

    def commit(self, id, first, on_token):
        pages = self.reserved.pop(id)
        for position, page in enumerate(pages):
            assert self.written[page] == (self.prompts[id], position), "a page was committed that never came"
        self.decoding[id] = pages

    def _free(self, pages, id):
        for page in pages:
            assert self.owner.pop(page) == id

    def release(self, id):
        self._free(self.reserved.pop(id, []), id)

    def quarantine(self, id):
        self.quarantined[id] = self.reserved.pop(id)
        return len(self.quarantined[id])

    def unquarantine(self, id):
        self._free(self.quarantined.pop(id), id)

    def cancel(self, id):
        assert id not in self.reserved, "a ticket's pages are not the engine's to cancel"
        self._free(self.decoding.pop(id, []), id)


class Computer:
    """The prefill worker's engine: what was submitted, admitted and is to be computed."""

    def __init__(self):
        self.sinks = {}
        self.admitted = {}

    def submit_prefill(self, id, prompt, sampling, have_pages, sink, shares):
        self.sinks[id] = (sink, list(prompt))

    def admit_prefill(self, id, first_page):
        assert id in self.sinks
        self.admitted[id] = first_page

    def defer_prefill(self, id, *, deferred):
        pass

    def cancel(self, id):
        self.sinks.pop(id, None)
        self.admitted.pop(id, None)


class Wire:
    """One end of a connection: what it sent and the other end has not read."""

    shares = 1
    bandwidth = None

    def __init__(self, fence, has_key=False):
        self.fence = fence
        self.has_key = has_key
        self.alive = True
        self.out = []
        self.backlog = 0
        self.doomed = False
        self.finished = []  # transfers whose last word was given to this end

    def send(self, message, body=b""):
        self.out.append((None, message, bytes(body)))

    def push(self, generation, message, body=b""):
        self.out.append((generation, message, bytes(body)))

    def finish(self, generation, message):
        self.push(generation, message)
        self.finished.append(generation)

    def drop(self, generation):
        self.out = [item for item in self.out if item[0] != generation]
        self.finished = [one for one in self.finished if one != generation]

    def sent(self):
        """Transfers of which nothing is under way any more."""
        under_way = {item[0] for item in self.out}
        over = [generation for generation in self.finished if generation not in under_way]
        self.finished = [generation for generation in self.finished if generation in under_way]
        return over

    def abort(self, reason):
        self.doomed = True  # the end is heard later, as asyncio does

    def revoke(self):
        return self.has_key


@dataclass
class Tagged:
    """A page on loan: the prompt that it belongs to."""

    content: bytes
    count: int = 1

    def end(self):
        pass


class Copy:
    """A backend that moves a tag in place of pages: the prompt that they belong to."""

    page_bytes = 1

    def push(self, channel, generation, first_page, pages):
        count, content = pages.count, pages.content
        channel.push(generation, Chunk(generation=generation, first_page=first_page, pages=count), content)
        return len(content)


class Ear:
    """Tokens after an end, or two ends, would be a client's confusion."""

    def __init__(self):
        self.tokens, self.failures = 0, 0

    def on_granted(self, first_page):
        pass

    def on_pages(self, byte_count):
        pass

    def on_token(self, token):
        assert not self.failures
        self.tokens += 1

    def on_failed(self, failure):
        self.failures += 1
        assert self.failures == 1


class Machine(RuleBasedStateMachine):
    fence = Fence.CONNECTION
    has_key = False
    pages_type = Pages
    lend = staticmethod(Tagged)

    @initialize()
    def begin(self):
        self.now = 0.0
        self.number = 0
        self.incarnation = 0
        self.landing = []  # frames that have a place in D's pages and are not there yet
        self.old_wires = []  # what old connections still had under way, to be played to new ones
        self.start_decode()
        self.start_prefill()
        self.connect()

    def start_decode(self):
        self.incarnation += 1
        self.pages = self.pages_type()
        self.decode = DecodeSide(
            self.pages, Copy(), self.incarnation, post=lambda call, *a: call(*a), clock=lambda: self.now,
            meter=Meter(), prefill_timeout_s=50.0, lease_s=10.0, quarantine_pages=ALL_PAGES // 2,
        )  # fmt: skip
        self.ears = {}

    def start_prefill(self):
        self.computer = Computer()
        self.prefill = PrefillSide(
            self.computer, Copy(), PAGE_TOKENS, post=lambda call, *a: call(*a), clock=lambda: self.now,
            meter=Meter(),
        )  # fmt: skip

    def connect(self):
        self.at_decode, self.at_prefill = Wire(self.fence, self.has_key), Wire(self.fence)

    def land(self, landing):
        """A frame's bytes are all there."""
        self.landing.remove(landing)
        chunk, content, places = landing
        self.pages.fill(*places, content)
        self.decode.landed(self.at_decode, chunk)

    def cut(self):
        """The connection ends; both ends hear it. What was under way is kept, to be played to the next one."""
        self.old_wires += self.at_prefill.out
        self.landing.clear()  # D itself brings the bytes in, and has stopped
        self.at_decode.alive = self.at_prefill.alive = False
        self.decode.on_closed(self.at_decode, "cut")
        self.prefill.on_closed(self.at_prefill, "cut")
        self.connect()

    def give(self, side, end, item, *, slow=False):
        """`slow`: pages have their place, and get there later."""
        _, message, body = item
        try:
            if not isinstance(message, Chunk):
                side.on_message(end, message, memoryview(body))
            elif (places := side.place(end, message)) is not None:
                self.landing.append((message, bytes(body), places))
                if not slow:
                    self.land(self.landing[-1])
        except WireError:
            self.cut()

    @precondition(lambda self: self.landing)
    @rule(data=st.data())
    def a_frame_lands(self, data):
        self.land(data.draw(st.sampled_from(self.landing)))

    @rule(tokens=st.integers(1, 12))
    def ask(self, tokens):
        self.number += 1
        request = f"r{self.incarnation}.{self.number}"
        self.ears[request] = Ear()
        self.decode.ask(self.at_decode, request, [self.number % 256] * tokens, SAMPLING, self.ears[request])

    @precondition(lambda self: self.at_decode.out)
    @rule()
    def decode_word_arrives(self):
        """In order: a decode worker's words are few, and TCP keeps their order."""
        self.give(self.prefill, self.at_prefill, self.at_decode.out.pop(0))

    @precondition(lambda self: self.at_prefill.out)
    @rule(data=st.data(), twice=st.booleans(), overtake=st.booleans(), slow=st.booleans())
    def prefill_word_arrives(self, data, twice, overtake, slow):
        """In any order, perhaps twice."""
        at = data.draw(st.integers(0, len(self.at_prefill.out) - 1)) if overtake else 0
        item = self.at_prefill.out[at] if twice else self.at_prefill.out.pop(at)
        self.give(self.decode, self.at_decode, item, slow=slow)

    @rule()
    def all_is_taken(self):
        """What the decode worker has read it says, later."""
        for generation in self.at_prefill.sent():
            self.prefill.on_sent(self.at_prefill, generation)

    @precondition(lambda self: self.old_wires)
    @rule(data=st.data())
    def an_old_word_arrives(self, data):
        """What a former connection (of this or a former incarnation) carried is said on the present one."""
        self.give(self.decode, self.at_decode, data.draw(st.sampled_from(self.old_wires)))

    @precondition(lambda self: self.computer.sinks)
    @rule(data=st.data(), fail=st.sampled_from([False] * 9 + [True]))
    def compute(self, data, fail):
        """The prefill engine does one thing: asks for a ticket, or gives the next page."""
        key = data.draw(st.sampled_from(sorted(self.computer.sinks)))
        if fail:
            sink, _ = self.computer.sinks[key]
            self.computer.cancel(key)
            sink.on_failed("the engine failed")
        else:
            self.compute_one(key)

    def compute_one(self, key):
        sink, prompt = self.computer.sinks[key]
        if key not in self.computer.admitted:
            sink.on_head()
            return
        page, end = self.computer.admitted[key], -(-len(prompt) // PAGE_TOKENS)
        if page == end - 1:
            sink.on_first(Token(1, 0.0, (), "length" if len(prompt) == 7 else None))
        sink.on_chunk(page, self.lend(bytes(prompt)))
        self.computer.admitted[key] = page + 1
        if page == end - 1:
            sink.on_done()
            self.computer.cancel(key)

    @rule(turns=st.integers(1, 6))
    def all_goes_well(self, turns):
        """What usually happens: words arrive in order, the engine computes. Brings the rest deep into a transfer."""
        for _ in range(turns):
            self.deliver_all(1)
            for key in sorted(self.computer.sinks):
                self.compute_one(key)

    def deliver_all(self, count):
        for _ in range(count):
            if self.at_decode.out:
                self.give(self.prefill, self.at_prefill, self.at_decode.out.pop(0))
            if self.at_prefill.out:
                self.give(self.decode, self.at_decode, self.at_prefill.out.pop(0))
            self.all_is_taken()

    @precondition(lambda self: self.ears)
    @rule(data=st.data())
    def client_leaves(self, data):
        self.decode.cancel(data.draw(st.sampled_from(sorted(self.ears))))

    @rule(seconds=st.sampled_from([0.3, 0.3, 0.3, 5.0, 11.0, 60.0]))
    def time_passes(self, seconds):
        self.now += seconds
        self.decode.sweep()
        self.prefill.sweep()
        if self.at_decode.doomed:  # a writer was cut off
            self.cut()

    @rule(what=st.sampled_from(["nothing"] * 5 + ["connection", "prefill", "decode"]))
    def something_dies(self, what):
        if what == "nothing":
            return
        self.cut()
        if what == "prefill":
            self.start_prefill()
        elif what == "decode":
            self.start_decode()

    @invariant()
    def pages_and_tickets_agree(self):
        if not hasattr(self, "decode"):
            return
        held = self.decode.count(State.OPEN, State.FIRST)
        assert len(self.pages.reserved) == held
        assert len(self.pages.quarantined) == self.decode.count(State.QUARANTINED, State.CUT)
        owned = [page for pages in (self.pages.reserved, self.pages.quarantined, self.pages.decoding)
                 for some in pages.values() for page in some]  # fmt: skip
        assert sorted(owned) == sorted(self.pages.owner), "a page has no owner, or two"

    def teardown(self):
        if not hasattr(self, "decode"):
            return
        for request in list(self.ears):
            self.decode.cancel(request)
        self.settle()
        assert not self.pages.owner, "pages were leaked"
        assert not self.prefill.active
        assert not self.computer.sinks
        assert not self.decode._by_request
        assert not self.decode._by_generation

    def settle(self):
        """All frames land, all words arrive, in order."""
        while self.landing:
            self.land(self.landing[0])
        for _ in range(400):
            if not (self.at_decode.out or self.at_prefill.out):
                break
            self.deliver_all(1)
        self.all_is_taken()


Machine.TestCase.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
TestBothSides = Machine.TestCase


class MessageMachine(Machine):
    """A writer of whom only its own word proves anything: the connection's end frees no page."""

    fence = Fence.MESSAGE

    def teardown(self):
        if not hasattr(self, "decode"):
            return
        for request in list(self.ears):
            self.decode.cancel(request)
        self.settle()
        # What is left is quarantined, never free and never anybody's.
        assert set(self.pages.owner.values()) == set(self.pages.quarantined)
        assert not self.pages.reserved


MessageMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestWordAlone = MessageMachine.TestCase


class KeyMachine(Machine):
    """A one-sided writer: the connection's end proves nothing, but its memory key can be ended, and is."""

    fence = Fence.KEY
    has_key = True


KeyMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestOneSidedWriter = KeyMachine.TestCase


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


def test_the_model_itself_notices_a_foreign_write():
    pages = Pages()
    pages.reserve("a", [1, 1], SAMPLING)
    with pytest.raises(AssertionError, match="another prompt"):
        pages.fill(*pages.open_pages("a", 0, 1), b"\x02\x02")
    with pytest.raises(KeyError):
        pages.commit("a", None, None)
