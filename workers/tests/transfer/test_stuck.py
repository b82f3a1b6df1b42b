"""Reads that never end keep their pages; a worker that has lost too many to them ends, which is what ends the reads."""

import asyncio

import pytest

from tandem_worker import main
from tandem_worker.main import CANNOT_SERVE, Worker
from tandem_worker.server.service import Phase
from tandem_worker.transfer import stuck
from tandem_worker.transfer.stuck import STUCK_S, Stuck
from workers.tests.transfer.ends import BESIDE
from workers.tests.transfer.kit import GREEDY, eventually, make_settings, prompt, pull, running
from workers.tests.transfer.test_lanes import never_ending

FEW, MANY = 10, 11


@pytest.mark.parametrize(
    ("looks", "ends"),
    [
        pytest.param([(FEW, 0), (FEW, 99)], False, id="so many are borne for ever"),
        pytest.param([(MANY, 0), (MANY, STUCK_S - 1)], False, id="more, but not for long"),
        pytest.param([(MANY, 0), (MANY, STUCK_S)], True, id="more, for too long"),
        pytest.param([(MANY, 0), (FEW, 5), (MANY, 6), (MANY, STUCK_S)], False, id="a writer went on meanwhile"),
    ],
)
def test_when_a_worker_is_stuck(looks, ends):
    bound = Stuck(FEW)
    assert bool([bound.look(*one) for one in looks][-1]) is ends


@pytest.mark.parametrize("backend", BESIDE)
async def test_pages_of_reads_that_do_not_end_are_noticed_and_so_is_their_end(model, monkeypatch, backend):
    monkeypatch.setattr(stuck, "STUCK_S", 0.2)
    async with running(model, "p0", backend=backend) as prefill, running(model, "d0", backend=backend) as decode:
        decode.node.decode._quarantine_pages = 0  # a writer is cut off at once
        decode.node._stuck = Stuck(24)
        link = await decode.node.peers.get(("127.0.0.1", prefill.assembled.kv_port))
        await eventually(lambda: link.backend == backend, "they agree on how pages travel")
        reads = never_ending(link._lanes.lane)
        await pull(decode, prefill, "r", prompt("stuck", 100), GREEDY)
        await eventually(lambda: reads, "a read is under way")
        link.abort("cut by the test")
        await eventually(lambda: decode.node.stuck, "that 25 pages are nobody's is said")
        assert decode.node.stuck.startswith("25 pages wait for reads that do not end")
        for read in reads:
            read.cancel()
        await eventually(lambda: not decode.node.stuck, "all is well")
        await eventually(decode.is_empty, "its pages are free")


class Ended:
    """All of a worker, of which one part ends it."""

    def __init__(self, part):
        self.part, self.stopped = part, False

    async def said(self, part):
        if part != self.part:
            await asyncio.Event().wait()
        return f"{part} has ended it"

    async def lost(self):
        return await self.said("lost")

    async def stuck(self):
        return await self.said("stuck")

    async def stop(self):
        self.stopped = True


@pytest.mark.parametrize(
    ("part", "waits"), [pytest.param("stuck", True, id="it drains"), pytest.param("lost", False, id="at once")]
)
async def test_a_worker_that_cannot_go_on_ends_with_its_reason(model, monkeypatch, capsys, part, waits):
    worker, assembled = Worker(make_settings(model, "d0")), Ended(part)

    async def load():
        worker._service.phase = Phase.READY
        worker._service.active = 1
        return assembled

    monkeypatch.setattr(worker, "_load", load)
    monkeypatch.setattr(main, "DRAIN_AT_LEAST_S", 0.0)
    serving = asyncio.create_task(worker._serve())
    await eventually(lambda: worker._service.phase is Phase.DRAINING, "it is not ready any more")
    if waits:
        await asyncio.sleep(0.2)
        assert not assembled.stopped
        worker._service.active = 0
    assert await serving == CANNOT_SERVE
    assert assembled.stopped
    assert capsys.readouterr().err == f"tandem-worker: {part} has ended it\n"
