"""Pages that travel beside the connection: the same tokens by every backend, and nothing left whatever ends."""

import asyncio
import importlib.util

import pytest

from tandem_worker.transfer.backends import NAMES, PACKAGES, check_backend
from tandem_worker.transfer.base import BackendError, LaneError
from tandem_worker.transfer.wire import Span, WireError
from workers.tests.transfer.kit import GREEDY, alone, backends_of, eventually, prompt, pull, running

BESIDE = [name for name in NAMES if name != "tcp"]
READ_BY_LIBRARY = ["nixl", "mooncake"]


@pytest.fixture
async def lane_pair(model, request):
    """Two workers with the backend of the test's first parameter."""
    name = request.param
    if name in PACKAGES and importlib.util.find_spec(PACKAGES[name]) is None:
        pytest.skip(f"the package of {name} is not installed")
    async with running(model, "p0", backend=name) as prefill, running(model, "d0", backend=name) as decode:
        yield prefill, decode


async def on_lane(decode, prefill):
    """The connection, once pages travel beside it."""
    link = await decode.node.peers.get(("127.0.0.1", prefill.assembled.kv_port))
    name = decode.settings.backend
    await eventually(lambda: link.backend == name, f"{name} is agreed on")
    await eventually(lambda: backends_of(prefill).get(name) == 1, "the other side knows")
    assert backends_of(decode)[name] == 1
    (far,) = prefill.node._listening._links
    await eventually(lambda: far.bandwidth, "the way has been measured")
    return link


async def both_are_empty(pair):
    for worker in pair:
        await eventually(worker.is_empty, "nothing is held")


@pytest.mark.parametrize("lane_pair", BESIDE, indirect=True)
async def test_pages_travel_beside_the_connection(lane_pair):
    prefill, decode = lane_pair
    await on_lane(decode, prefill)
    prompts = [prompt(f"lane{n}", n) for n in (1, 33, 100, 400)]
    wanted = [await alone(prefill, f"a{n}", ids, GREEDY) for n, ids in enumerate(prompts)]
    got = [await pull(decode, prefill, f"r{n}", ids, GREEDY) for n, ids in enumerate(prompts)]
    for heard in (*wanted, *got):
        await heard.until(lambda heard: heard.over)
    assert [heard.ids for heard in got] == [heard.ids for heard in wanted]
    assert "\ntandem_kv_transfer_copied_bytes_total 0.0" in prefill.service.metrics.exposition().decode()
    await both_are_empty(lane_pair)


@pytest.mark.parametrize("share", [0.0, 0.05], ids=["none may be lent", "few may"])
@pytest.mark.parametrize("lane_pair", ["shm"], indirect=True)
async def test_pages_that_may_not_be_lent_travel_as_bytes_of_the_connection(lane_pair, share, monkeypatch):
    prefill, decode = lane_pair
    link = await on_lane(decode, prefill)
    prefill.engine._lending._most = int(prefill.engine.pages * share)
    fetched = []
    monkeypatch.setattr(
        link._lanes, "fetch", lambda *asked, fetch=link._lanes.fetch: fetched.append(asked) or fetch(*asked)
    )
    ids = [prompt(f"copied{n}", 400) for n in range(3)]
    got = [await pull(decode, prefill, f"r{n}", one, GREEDY) for n, one in enumerate(ids)]
    wanted = [await alone(prefill, f"a{n}", one, GREEDY) for n, one in enumerate(ids)]
    for heard in (*wanted, *got):
        await heard.until(lambda heard: heard.over)
    assert [heard.ids for heard in got] == [heard.ids for heard in wanted]
    assert bool(fetched) is (share > 0)
    counted = prefill.service.metrics.exposition().decode()
    assert "\ntandem_kv_transfer_copied_bytes_total 0.0" not in counted, "what went over tcp is counted"
    await both_are_empty(lane_pair)


@pytest.mark.parametrize("lane_pair", ["shm"], indirect=True)
async def test_lent_pages_are_used_until_they_are_taken(lane_pair):
    """The prompt's own end frees nothing that the decode worker may still read; the connection's end does."""
    prefill, decode = lane_pair
    link = await on_lane(decode, prefill)
    reads = never_ending(link._lanes.lane)
    await pull(decode, prefill, "r", prompt("lent", 100), GREEDY)
    await eventually(lambda: prefill.engine._pool.lent_pages == 25, "all pages are lent")
    await eventually(lambda: prefill.engine.stats().running == 0, "the prompt is computed")
    assert prefill.engine.stats().kv_usage > 0
    link.abort("cut by the test")
    await eventually(prefill.is_empty, "the loans end with the connection")
    for read in reads:
        read.cancel()
    await both_are_empty(lane_pair)


@pytest.mark.parametrize("end", ["cancel", "cut"])
@pytest.mark.parametrize("lane_pair", BESIDE, indirect=True)
async def test_an_end_in_the_middle_leaves_nothing(lane_pair, end):
    prefill, decode = lane_pair
    link = await on_lane(decode, prefill)
    heard = await pull(decode, prefill, "r", prompt("middle", 400), GREEDY)
    await heard.until(lambda heard: heard.bytes > 0)
    if end == "cut":
        link.abort("cut by the test")
    else:
        decode.node.decode.cancel("r")
    await both_are_empty(lane_pair)
    again = await pull(decode, prefill, "r2", prompt("middle", 400), GREEDY)
    await again.until(lambda heard: heard.over)
    assert again.failure is None


@pytest.mark.parametrize("lane_pair", ["shm"], indirect=True)
async def test_without_a_common_directory_pages_travel_over_tcp_and_that_is_what_is_said(lane_pair, caplog):
    prefill, decode = lane_pair
    prefill.node._backend._door.path.unlink()
    heard = await pull(decode, prefill, "r", prompt("apart", 100), GREEDY)
    await heard.until(lambda heard: heard.over)
    assert heard.failure is None
    for worker in lane_pair:
        assert backends_of(worker) == {"tcp": 1}
    assert "travel over tcp" in caplog.text


def never_ending(lane):
    """Reads that do not come to their end by themselves."""
    reads, probe = [], lane.fetch

    def fetch(spans, pieces):
        if pieces[0].obj is lane.scratch.obj:
            return probe(spans, pieces)
        reads.append(asyncio.get_running_loop().create_future())
        return lane.flying.add(reads[-1])

    lane.fetch = fetch
    return reads


@pytest.mark.parametrize("lane_pair", BESIDE, indirect=True)
async def test_pages_that_are_still_being_read_into_are_nobodys_until_the_reads_are_over(lane_pair):
    prefill, decode = lane_pair
    link = await on_lane(decode, prefill)
    reads = never_ending(link._lanes.lane)
    heard = await pull(decode, prefill, "r", prompt("slow", 100), GREEDY)
    await eventually(lambda: reads, "a read is under way")
    link.abort("cut by the test")
    await heard.until(lambda heard: heard.failure is not None)
    await eventually(lambda: decode.engine.stats().quarantined_pages == 25, "its pages are in quarantine")
    for read in reads:
        read.set_result(None)
    await both_are_empty(lane_pair)


@pytest.mark.parametrize("lane_pair", ["shm"], indirect=True)
async def test_a_read_that_fails_ends_the_connection_and_is_told(lane_pair):
    prefill, decode = lane_pair
    link = await on_lane(decode, prefill)
    reads = never_ending(link._lanes.lane)
    heard = await pull(decode, prefill, "r", prompt("failing", 100), GREEDY)
    await eventually(lambda: reads, "a read is under way")
    reads[0].set_exception(LaneError("the card is on fire"))
    await heard.until(lambda heard: heard.failure is not None)
    assert "on fire" in heard.failure.reason
    for read in reads[1:]:
        read.cancel()
    await both_are_empty(lane_pair)


@pytest.mark.parametrize("lane_pair", READ_BY_LIBRARY, indirect=True)
async def test_nothing_is_read_outside_of_what_was_lent(lane_pair):
    prefill, decode = lane_pair
    link = await on_lane(decode, prefill)
    for at in (-1, -4096, 2**62):
        with pytest.raises(WireError, match="outside"):
            link._lanes.lane.fetch([Span(at, 8)], [memoryview(bytearray(8))])


@pytest.mark.parametrize("name", sorted(PACKAGES))
def test_a_backend_whose_package_is_not_installed_is_refused_with_what_to_install(name, monkeypatch):
    monkeypatch.setattr("tandem_worker.transfer.backends.find_spec", lambda package: None)
    with pytest.raises(BackendError, match=f"install the extra `{name}`"):
        check_backend(name)
