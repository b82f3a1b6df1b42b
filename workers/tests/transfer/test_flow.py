"""Flow control with real engines, over each backend: a slow decode worker, a long transfer, many at once."""

from collections import deque

import pytest

from tandem_worker.transfer.backends import NAMES
from tandem_worker.transfer.outbox import WINDOW_BYTES
from tandem_worker.transfer.push import IN_FLIGHT, IN_FLIGHT_AT_MOST
from tandem_worker.transfer.wire import Taken
from workers.tests.transfer.kit import GREEDY, alone, eventually, prompt, pull, running

CHUNK_BYTES = 8 * 3072  # 32 tokens, 8 pages: one frame
LONG, SHORT = 480, 60  # tokens: 15 frames, and 2


class Slow:
    """A decode worker's connection whose `taken` leave one by one, when they are let."""

    def __init__(self, link):
        self.kept = deque()
        self._send = link.send
        link.send = self._keep

    def _keep(self, message, body=b""):
        if isinstance(message, Taken):
            self.kept.append(message)
        else:
            self._send(message, body)

    def let(self):
        self._send(self.kept.popleft())

    async def let_all(self, over):
        while not over():
            await eventually(lambda: self.kept or over(), "the next frame")
            if self.kept:
                self.let()


async def joined(prefill, decode):
    """(the prefill worker's end of their connection, the slow decode worker's)."""
    link = await decode.node.peers.get(("127.0.0.1", prefill.assembled.kv_port))
    await eventually(lambda: link.backend == decode.settings.backend, "they agree on how pages travel")
    (far,) = [one for one in prefill.node._listening._links if one.alive and one.peer.worker == decode.settings.worker]
    # The other end hears of it later, and then sets its window.
    await eventually(lambda: far.backend == decode.settings.backend, "the other end knows it too")
    return far, Slow(link)


async def same_as_alone(worker, heard, ids):
    wanted = await alone(worker, "alone", ids, GREEDY)
    for one in (heard, wanted):
        await one.until(lambda one: one.over)
    assert heard.ids == wanted.ids


@pytest.mark.parametrize("backend", NAMES)
async def test_a_slow_decode_worker_slows_its_own_transfers_alone(model, backend):
    async with (
        running(model, "p0", backend=backend) as prefill,
        running(model, "slow", backend=backend) as slow,
        running(model, "quick", backend=backend) as quick,
    ):
        far, kept = await joined(prefill, slow)
        far._outbox.window = 1  # one frame at a time
        stuck = await pull(slow, prefill, "stuck", prompt("stuck", LONG), GREEDY)
        await eventually(lambda: len(kept.kept) == 1, "one frame is under way")
        for number in range(3):
            ids = prompt(f"quick{number}", LONG)
            await same_as_alone(quick, await pull(quick, prefill, f"q{number}", ids, GREEDY), ids)
        assert (far._outbox.flying, stuck.over) == (CHUNK_BYTES, False)
        await kept.let_all(lambda: stuck.over)
        await same_as_alone(slow, stuck, prompt("stuck", LONG))


@pytest.mark.parametrize("backend", NAMES)
async def test_a_short_transfer_takes_turns_with_a_long_one(model, backend):
    async with running(model, "p0", backend=backend) as prefill, running(model, "d0", backend=backend) as decode:
        far, kept = await joined(prefill, decode)
        far._outbox.window = 1
        long = await pull(decode, prefill, "long", prompt("long", LONG), GREEDY)
        await eventually(lambda: far._outbox.waiting >= 13 * CHUNK_BYTES, "the long one waits")
        short = await pull(decode, prefill, "short", prompt("short", SHORT), GREEDY)
        await eventually(lambda: far._outbox.waiting >= 15 * CHUNK_BYTES - 3072, "so does the short one")
        let = 0
        while short.bytes < 15 * 3072:
            await eventually(lambda: kept.kept, "the next frame")
            kept.let()
            let += 1
            await eventually(lambda: kept.kept, "the next frame has come")
        assert let <= 2 * 2  # each of its two frames behind one of the other's
        assert long.bytes <= 3 * CHUNK_BYTES
        await kept.let_all(lambda: short.over and long.over)
        await same_as_alone(prefill, long, prompt("long", LONG))


@pytest.mark.parametrize("backend", NAMES)
async def test_only_so_many_are_under_way_and_all_come_through(model, backend):
    async with running(model, "p0", backend=backend) as prefill, running(model, "d0", backend=backend) as decode:
        _, kept = await joined(prefill, decode)
        most = 0

        def under_way():
            nonlocal most
            most = max(most, sum(push.state in IN_FLIGHT for push in prefill.node.prefill._pushes.values()))
            return most

        heard = [await pull(decode, prefill, f"r{n}", prompt(f"many{n}", SHORT), GREEDY) for n in range(12)]
        await eventually(lambda: under_way() == IN_FLIGHT_AT_MOST, "as many as may be are under way")
        while not all(one.over for one in heard):
            await eventually(lambda: kept.kept or all(one.over for one in heard), "the next frame")
            while kept.kept:
                kept.let()
            under_way()
        assert most == IN_FLIGHT_AT_MOST
        assert [one.failure for one in heard] == [None] * 12
        await same_as_alone(prefill, heard[0], prompt("many0", SHORT))


def test_the_window_is_bounded():
    assert WINDOW_BYTES == 32 * 2**20  # docs/reference/transfer.md
