"""Both sides against a model of page ownership, under any interleaving: reorder, duplicates, cancels, time, restarts.

The network here is worse than TCP: messages overtake each other and come twice. The model (`Pages`) fails at once if a
page is written by, or handed to, anybody but its owner; at the end every page must be free again.
"""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tandem_worker.engine import Token
from tandem_worker.transfer.base import Fence, Meter
from tandem_worker.transfer.decode_side import DecodeSide
from tandem_worker.transfer.prefill_side import PrefillSide
from tandem_worker.transfer.ticket import State
from tandem_worker.transfer.wire import Chunk, WireError
from workers.tests.transfer.sides_world import (
    ALL_PAGES,
    PAGE_TOKENS,
    SAMPLING,
    Computer,
    Copy,
    Ear,
    Pages,
    Tagged,
    Wire,
)


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
        self.computer.steps += 1
        page, end = self.computer.admitted[key], -(-len(prompt) // PAGE_TOKENS)
        if page == end - 1:
            sink.on_first(Token(1, 0.0, (), "length" if len(prompt) == 7 else None))
        sink.on_chunk(page, self.lend(bytes(prompt)))
        self.computer.admitted[key] = page + 1
        if page == end - 1:
            sink.on_done()
            self.computer.cancel(key)

    @rule()
    def the_engine_computes_for_somebody_else(self):
        """So that what waits for it may say so."""
        self.computer.steps += 1

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
        self.nothing_is_left()

    def nothing_is_left(self):
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
