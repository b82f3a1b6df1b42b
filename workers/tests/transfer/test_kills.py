"""kill -9 of either worker in each state of a transfer, and SIGSTOP in the middle of it; the rows are in ends.py.

After each the client has what the row says, in time; the survivor holds nothing; the dead one comes back at the same
address, and the next request is served with the tokens that one worker alone gives.
"""

import asyncio
import contextlib
import time
from dataclasses import replace
from functools import partial

import aiohttp
import pytest

from tandem_worker.transfer.backends import NAMES
from workers.tests.transfer.ends import FALLS, LEASE_S, ROW, STOPS, rows_of
from workers.tests.transfer.kit import eventually
from workers.tests.transfer.world import WITHIN_S, at, serves_again, watch

pytestmark = pytest.mark.timeout(600)
MID_PAGE = "open, in mid-page"
SOON = {(MID_PAGE, "p"), ("first, sending", "d")}  # in every run
CASES = [
    pytest.param(name, row, victim, id=f"{name}: {row.name}: {victim}",
                 marks=[] if (row.name, victim) in SOON else pytest.mark.slow)
    for name, row in rows_of(*NAMES) for victim in ("p", "d", *(["wire"] if row.name == MID_PAGE else []))
]  # fmt: skip


@pytest.mark.parametrize(("world", "row", "victim"), CASES, indirect=["world"])
async def test_a_worker_or_the_wire_between_them_dies(world, row, victim):
    async with at(world, row) as scene:
        if victim == "wire":
            scene.gate.cut()
            await no_longer_there(world, row)
            scene.go_on()
        else:
            scene.kill(victim)
        assert await scene.stream.end() is (row.decode_dies if victim == "d" else row.prefill_dies)
        for name in list(world.workers):
            await eventually(partial(is_settled, world, row, name), f"{name} holds nothing", WITHIN_S)
    await serves_again(world, scene.stream)


async def is_settled(world, row, name):
    """It holds nothing, or has died by what FALLS says."""
    survivor = world.workers[name]
    if world.backend in FALLS and row.half and survivor.process.poll() is not None:
        assert "Fatal: unexpected error: Endpoint timeout" in survivor.log.read_text()
        del world.workers[name]
        return True
    with contextlib.suppress(aiohttp.ClientError):
        return await survivor.is_empty()
    return False


async def no_longer_there(world, row):
    """The decode worker has heard of the end, while its writer was stopped."""

    async def heard():
        return (await watch(world.workers["d"]))["decode"] != [str(row.decode)]

    await eventually(heard, "the decode worker hears of the end", WITHIN_S)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "stop"),
    [pytest.param(name, stop, id=f"{name}: {stop.row}: {stop.victim}") for name in NAMES for stop in STOPS],
    indirect=["world"],
)
async def test_a_worker_is_stopped_for_longer_than_its_lease(world, stop):
    row = ROW[stop.row]
    async with at(world, replace(row, facts=replace(row.facts, lease_s=LEASE_S))) as scene:
        begun = time.monotonic()
        scene.stop(stop.victim)
        other = world.workers["d" if stop.victim == "p" else "p"]
        scene.go_on(but=stop.victim)
        if world.backend in stop.held:
            await eventually(lambda: is_cut_off(other), "the stopped writer is cut off", WITHIN_S)
        else:
            await eventually(other.is_empty, "the other one holds nothing", WITHIN_S)
        await asyncio.sleep(max(0.0, begun + LEASE_S - time.monotonic()))
        scene.go_on()
        assert await scene.stream.end() is row.prefill_dies
        for worker in world.workers.values():
            await eventually(worker.is_empty, f"{worker.url} holds nothing", WITHIN_S)
    await serves_again(world, scene.stream)


async def is_cut_off(worker):
    """Its quarantined pages are counted, as in use too, and the writer's connection is closed for good."""
    seen = await worker.metrics()
    names = ("tandem_kv_quarantined_pages", "tandem_kv_cache_usage_perc", "tandem_transfer_cut_off_total")
    return all(seen[name] > 0 for name in names)
