"""A decode worker that reads slowly, or has no room, holds up its own transfers and nobody else's."""

# ruff: noqa: A002 (a request's id is called id, as in the engine)

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from tandem_worker.engine import Token
from tandem_worker.engine.scheduler import MAX_ASKED
from tandem_worker.transfer import prefill_side, signs
from tandem_worker.transfer.base import Fence, Meter
from tandem_worker.transfer.handshake import Side
from tandem_worker.transfer.prefill_side import PrefillSide, from_sampling
from tandem_worker.transfer.push import ASKING_AT_MOST, BACKLOG_BYTES, IN_FLIGHT_AT_MOST, PATIENCE_S
from tandem_worker.transfer.wire import AskTicket, Generation, NoTicket, Prefill, SamplingFields, TicketGranted
from workers.tests.transfer.forged import HandMade, identity_of
from workers.tests.transfer.kit import GREEDY, KEY, alone, eventually, pull, running, write_model


@dataclass
class Computer:
    """The engine, as far as asking goes."""

    sinks: dict = field(default_factory=dict)
    deferred: dict = field(default_factory=dict)
    admitted: list = field(default_factory=list)
    steps: int = 0

    def stats(self):
        return SimpleNamespace(prefill_tokens=self.steps, decode_tokens=0)

    def submit_prefill(self, id, prompt, sampling, have_pages, sink, shares):
        self.sinks[id] = sink

    def admit_prefill(self, id, first_page):
        self.admitted.append(id)

    def defer_prefill(self, id, *, deferred):
        self.deferred[id] = deferred

    def cancel(self, id):
        self.sinks.pop(id, None)


class Far:
    """A decode worker's connection that keeps what is sent."""

    alive = True
    shares = 1
    bandwidth = None
    fence = Fence.CONNECTION

    def __init__(self):
        self.backlog = 0
        self.sent, self.finished = [], []

    def send(self, message, body=b""):
        self.sent.append(message)

    def push(self, generation, chunk, body):
        self.backlog += len(body)

    def finish(self, generation, message):
        self.finished.append(generation)

    def drop(self, generation):
        pass

    @property
    def asked(self):
        return [message.request for message in self.sent if isinstance(message, AskTicket)]


@pytest.fixture
def side():
    side = PrefillSide(
        Computer(),
        SimpleNamespace(page_bytes=1),
        2,
        post=lambda call, *a: call(*a),
        clock=lambda: side.now,
        meter=Meter(),
    )
    side.now = 0.0
    return side


def begin(side, far, count, name):
    """So many requests of this decode worker, all at the head of the queue."""
    sampling = SamplingFields(max_tokens=4)
    for n in range(count):
        message = Prefill(request=f"{name}{n}", sampling=sampling, have_pages=0)
        side.on_message(far, message, memoryview(b"\x01\x00\x00\x00"))
    for key, sink in list(side._engine.sinks.items()):
        if f":{name}" in key:
            sink.on_head()


def grant(side, far):
    """All that it is asked for, and what it is then asked for."""
    number = 0
    while number < len(far.asked):
        generation = Generation(7, number + 1)
        message = TicketGranted(request=far.asked[number], generation=generation, first_page=0, lease_ms=1)
        side.on_message(far, message, memoryview(b""))
        number += 1


def test_so_many_transfers_to_one_worker_are_under_way_and_no_more(side):
    slow, quick = Far(), Far()
    begin(side, slow, IN_FLIGHT_AT_MOST + 5, "s")
    grant(side, slow)
    side.sweep()
    assert len(slow.asked) == IN_FLIGHT_AT_MOST
    assert sum(side._engine.deferred.values()) == 5
    begin(side, quick, 3, "q")
    grant(side, quick)
    assert len(quick.asked) == 3


def test_one_that_has_taken_everything_makes_room_for_the_next(side):
    far = Far()
    begin(side, far, IN_FLIGHT_AT_MOST + 1, "r")
    grant(side, far)
    key = side._engine.admitted[0]
    side.on_first(key, Token(1, 0.0, (), None))
    side.on_done(key)
    side.sweep()
    assert len(far.asked) == IN_FLIGHT_AT_MOST  # its commit has left, its pages are not taken
    side.on_sent(far, far.finished[0])
    side.sweep()
    assert len(far.asked) == IN_FLIGHT_AT_MOST + 1


def test_none_begins_while_too_much_waits(side):
    far = Far()
    far.backlog = BACKLOG_BYTES + 1
    begin(side, far, 2, "r")
    assert far.asked == []
    far.backlog = 0
    side.sweep()
    assert len(far.asked) == 2


def test_who_has_no_room_is_passed_over_until_it_may_be_asked_again(side):
    far = Far()
    begin(side, far, 1, "r")
    (key,) = side._engine.deferred
    assert side._engine.deferred[key] is False
    side.on_message(far, NoTicket(request="r0", retry_ms=250), memoryview(b""))
    assert side._engine.deferred[key] is True
    side.now = 0.3
    side.sweep()
    assert side._engine.deferred[key] is False
    assert far.asked == ["r0", "r0"]


def test_one_that_does_not_answer_is_asked_little_and_the_rest_is_passed_over(side):
    silent, quick = Far(), Far()
    begin(side, silent, MAX_ASKED, "s")
    side.sweep()
    assert len(silent.asked) == ASKING_AT_MOST < MAX_ASKED
    assert sum(side._engine.deferred.values()) == MAX_ASKED - ASKING_AT_MOST
    begin(side, quick, 1, "q")
    assert quick.asked == ["q0"]


def test_many_that_do_not_answer_give_their_places_to_others(side):
    silent = [Far() for _ in range(MAX_ASKED)]
    for number, far in enumerate(silent):
        begin(side, far, 1, f"s{number}-")
    side.now = PATIENCE_S - 0.1
    side.sweep()
    assert not any(side._engine.deferred.values()), "a moment is no silence"
    side.now = PATIENCE_S
    side.sweep()
    assert all(side._engine.deferred.values())
    message = TicketGranted(request="s0-0", generation=Generation(7, 1), first_page=0, lease_ms=1)
    side.on_message(silent[0], message, memoryview(b""))
    assert [key.endswith("s0-0") for key in side._engine.admitted] == [True], "a late answer counts"


@pytest.mark.parametrize("answer", ["ticket", "noticket"])
def test_an_answer_brings_the_next_question_at_once(side, answer):
    far = Far()
    begin(side, far, 5, "r")
    for number in range(5 - ASKING_AT_MOST):
        if answer == "ticket":
            generation = Generation(7, number + 1)
            message = TicketGranted(request=f"r{number}", generation=generation, first_page=0, lease_ms=1)
        else:
            message = NoTicket(request=f"r{number}", retry_ms=250)
        side.on_message(far, message, memoryview(b""))
        assert far.asked == [f"r{n}" for n in range(number + 1 + ASKING_AT_MOST)]


async def test_a_frozen_worker_does_not_starve_another(model, monkeypatch):
    """It has as many prompts at the head as may stand there without a ticket; another worker's prompt goes through."""
    monkeypatch.setattr(prefill_side, "ANSWER_S", 1000.0)
    monkeypatch.setattr(signs, "SILENT_PINGS", 1000)
    async with running(model, "p0") as prefill, running(model, "d0") as quick:
        frozen = HandMade(*await asyncio.open_connection("127.0.0.1", prefill.assembled.kv_port))
        assert (await frozen.shake(Side.OPENER, identity_of(prefill), bytes.fromhex(KEY))).peer
        for n in range(MAX_ASKED):
            sampling = from_sampling(GREEDY)
            await frozen.send(Prefill(request=f"f{n}", sampling=sampling, have_pages=0), bytes([n + 3, 0, 0, 0]) * 30)
        await eventually(lambda: prefill.node.prefill.active == MAX_ASKED, "all are at the head")
        heard = await pull(quick, prefill, "r", [5] * 40, GREEDY)
        await heard.until(lambda heard: heard.over, 60.0)
        assert heard.failure is None
        frozen.close()


async def test_a_worker_without_room_does_not_starve_another(tmp_path):
    """More requests than may stand at the head wait for a full worker; another worker's go through."""
    from tandem_worker.engine import Sampling, Shortage

    model = write_model(tmp_path / "tiny")
    greedy = Sampling(max_tokens=4, ignore_eos=True)
    async with (
        running(model, "p0") as prefill,
        running(model, "full") as full,
        running(model, "free") as free,
    ):
        full.engine.reserve = lambda *facts: Shortage(1, 0)
        waiting = [await pull(full, prefill, f"w{n}", [n + 3] * 30, greedy) for n in range(20)]
        await eventually(lambda: prefill.node.prefill.active == 20, "all wait")
        heard = await pull(free, prefill, "r", [5] * 40, greedy)
        await heard.until(lambda heard: heard.over, 60.0)
        assert heard.failure is None
        assert all(one.failure is None for one in waiting)
        wanted = await alone(prefill, "a", [5] * 40, greedy)
        await wanted.until(lambda heard: heard.over, 60.0)
        assert heard.ids == wanted.ids
