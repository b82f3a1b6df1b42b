"""A prompt that has its ticket and waits on the prefill worker behind others, for longer than a lease lasts."""

import threading
from types import SimpleNamespace

import pytest

from tandem_worker.engine import Shortage, Token
from tandem_worker.transfer import push
from tandem_worker.transfer.ticket import LEASE_S, RETRY_MS, State
from tandem_worker.transfer.wire import Generation, TicketGranted, Waits
from workers.tests.transfer.kit import GREEDY, Heard, alone, eventually, prompt, pull, running
from workers.tests.transfer.test_fairness import Far, begin, side  # noqa: F401 (a fixture)

LEASE_MS = 30_000
FIRST, CHUNK, STEP = "first", "chunk", "step"


@pytest.mark.parametrize(
    ("happens", "said"),
    [
        pytest.param([9.0], 0, id="the engine stands still"),
        pytest.param([STEP, 9.9], 0, id="not yet"),
        pytest.param([STEP, 10.0], 1, id="a third of the lease"),
        pytest.param([STEP, 10.0, 0.1], 1, id="once"),
        pytest.param([STEP, 10.0, 10.0, 10.0], 1, id="then it stands still"),
        pytest.param([STEP, 10.0, STEP, 10.0, STEP, 10.0], 3, id="each third"),
        pytest.param([30.0, STEP, 0.1], 1, id="one long step"),
        pytest.param([STEP, 9.0, CHUNK, STEP, 9.0], 0, id="a chunk says it too"),
        pytest.param([FIRST, STEP, 10.0], 0, id="its first token is sampled"),
        pytest.param([FIRST, CHUNK, STEP, 10.0], 0, id="its first token is sampled, pages follow"),
    ],
)
def test_when_it_is_said(side, happens, said):  # noqa: F811
    far = Far()
    side._transfer.push = lambda *pages: 0
    begin(side, far, 1, "r")
    side.on_message(far, TicketGranted(request="r0", generation=Generation(7, 1), first_page=0, lease_ms=LEASE_MS), b"")
    (key,) = side._engine.sinks
    for one in happens:
        if one == STEP:
            side._engine.steps += 1
        elif one == CHUNK:
            side.on_chunk(key, 0, SimpleNamespace(end=lambda: None))
        elif one == FIRST:
            side.on_first(key, Token(1, 0.0, (), None))
        else:
            side.now += one
            side.sweep()
    assert [message.generation for message in far.sent if isinstance(message, Waits)] == [Generation(7, 1)] * said


def test_a_lease_of_nothing_is_no_flood(side):  # noqa: F811
    far = Far()
    begin(side, far, 1, "r")
    side.on_message(far, TicketGranted(request="r0", generation=Generation(7, 1), first_page=0, lease_ms=0), b"")
    for _ in range(100):
        side._engine.steps += 1
        side.now += 0.01
        side.sweep()
    assert sum(isinstance(message, Waits) for message in far.sent) <= 10


class Clocked:
    """A pair whose prefill engine makes one step at a time, by a clock of this test."""

    def __init__(self, prefill, decode):
        self.prefill, self.decode, self.now = prefill, decode, 0.0
        self.steps = threading.Semaphore(0)
        for one in (prefill.node.prefill, decode.node.decode):
            one._clock = lambda: self.now
        compute = prefill.engine._runner.prefill

        def when_told(pieces):
            self.steps.acquire()
            return compute(pieces)

        prefill.engine._runner.prefill = when_told

    async def granted(self, **prompts):
        """Requests whose tickets are given at once, as after a while without room: none is computed before."""
        room, self.decode.engine.reserve = self.decode.engine.reserve, lambda *facts: Shortage(1, 0)
        heard = [await pull(self.decode, self.prefill, name, text, GREEDY) for name, text in prompts.items()]
        pushes = self.prefill.node.prefill._pushes
        await eventually(lambda: [(one.state, one.tries) for one in pushes.values()] == [(push.State.READY, 1)] * 2,
                         "there is no room")  # fmt: skip
        self.decode.engine.reserve = room
        self.now += RETRY_MS / 1000
        for one in heard:
            await one.until(lambda heard: heard.granted is not None)
        await eventually(
            lambda: {one.state for one in pushes.values()} == {push.State.PUSHING}, "both have heard of it"
        )
        return heard

    def ends_at(self, request):
        return self.decode.node.decode._by_request[request].ticket.ends_at

    async def step(self):
        done = self.prefill.engine.stats().prefill_tokens
        self.steps.release()
        await eventually(lambda: self.prefill.engine.stats().prefill_tokens > done, "a step")


@pytest.fixture
async def clocked(model):
    async with running(model, "p0", chunk_tokens=32) as prefill, running(model, "d0") as decode:
        clocked = Clocked(prefill, decode)
        yield clocked
        clocked.steps.release(10_000)


async def test_it_keeps_its_ticket_and_says_what_one_worker_says(clocked):
    before, behind = await clocked.granted(before=prompt("before", 400), behind=prompt("behind", 60))
    began = clocked.now
    while clocked.now < began + 2 * LEASE_S:
        await clocked.step()
        clocked.now += LEASE_S / 3
        promised = clocked.now + LEASE_S
        await eventually(lambda at=promised: clocked.ends_at("behind") == at, "its lease is renewed")
    clocked.steps.release(10_000)
    for one in (before, behind):
        await one.until(lambda heard: heard.over)
    assert (before.failure, behind.failure) == (None, None)
    wanted: Heard = await alone(clocked.decode, "alone", prompt("behind", 60), GREEDY)
    await wanted.until(lambda heard: heard.over)
    assert behind.ids == wanted.ids
    for worker in (clocked.prefill, clocked.decode):
        await eventually(worker.is_empty, "nothing is held")


async def test_behind_an_engine_that_hangs_it_is_over_with_its_lease(clocked):
    _, behind = await clocked.granted(before=prompt("hang", 400), behind=prompt("behind it", 60))
    clocked.now += LEASE_S
    await behind.until(lambda heard: heard.failure is not None)
    assert behind.failure.code == "timeout"
    assert clocked.decode.node.decode.count(State.OPEN) == 0
