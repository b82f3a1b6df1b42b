"""A resync: what is read, and the collector's sight."""

from __future__ import annotations

import asyncio
import gc
import weakref
from itertools import islice

import pytest

from tandem_operator.edges.errors import ApiError
from tandem_operator.loop import resync
from tandem_operator.loop.main import until_first
from tandem_operator.loop.refs import Ref
from tandem_operator.loop.resync import fill_cache, first_sync, periods, set_aside, take_kind


class Node:
    """May be in a cycle."""

    def __init__(self):
        self.me = self


@pytest.fixture
def _as_before():
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("_as_before")
def test_what_is_set_aside_is_looked_at_again_once_in_a_while():
    kept = Node()
    seen = weakref.ref(kept)
    set_aside(whole=True)
    assert gc.get_freeze_count() > 0
    del kept
    set_aside(whole=False)
    assert seen() is not None, "out of the collector's sight"
    set_aside(whole=True)
    assert seen() is None


async def test_whole_objects_are_read_only_where_one_is_news(api, start):
    world = await start()
    await take_kind(world, "DisaggregatedInference")
    api.lists.clear()
    assert await take_kind(world, "DisaggregatedInference") == set()
    assert api.lists == [("DisaggregatedInference", True)]
    item = api.find("DisaggregatedInference", "chat")
    api.store("DisaggregatedInference", {**item, "spec": {**item["spec"], "suspend": True}})
    assert await take_kind(world, "DisaggregatedInference") == {Ref("serving", "chat")}
    assert api.lists[1:] == [("DisaggregatedInference", True), ("DisaggregatedInference", False)]
    assert world.cache.resource(Ref("serving", "chat"))["spec"]["suspend"] is True
    del api.items["DisaggregatedInference", "serving", "chat"]
    assert await take_kind(world, "DisaggregatedInference") == {Ref("serving", "chat")}
    assert world.cache.resource(Ref("serving", "chat")) is None


@pytest.mark.parametrize(("usual", "expected"), [(300, [10, 60, 300, 300, 300]), (30, [10, 30, 30, 30, 30])])
def test_the_first_resyncs_come_soon(usual, expected):
    assert list(islice(periods(usual), 5)) == expected


async def test_what_went_before_the_watches_began_is_missed_no_longer_than_until_the_next_resync(api, start):
    world = await start()
    await fill_cache(world)
    del api.items["DisaggregatedInference", "serving", "chat"]  # and no event says so
    await fill_cache(world, routine=False)
    assert world.cache.resource(Ref("serving", "chat")) is None
    assert Ref("serving", "chat") in world.queue._asked


@pytest.mark.usefixtures("_as_before")
@pytest.mark.parametrize(
    ("away", "within_s", "synced"),
    [
        pytest.param(0, 60, True, id="it answers"),
        pytest.param(50, 60, True, id="it is waited for"),
        pytest.param(50, 0, False, id="not for ever"),
    ],
)
async def test_an_operator_that_starts_while_the_api_server_is_away(start, monkeypatch, away, within_s, synced):
    world = await start()
    world.cache.synced, left = False, iter(range(away))

    async def fill(_world):
        if next(left, None) is not None:
            raise ApiError("Timeout", "no answer")

    monkeypatch.setattr(resync, "fill_cache", fill)
    monkeypatch.setattr(resync, "RETRY_S", 0)
    if synced:
        await first_sync(world, within_s)
    else:
        with pytest.raises(ApiError, match="no answer"):
            await first_sync(world, within_s)
    assert world.cache.synced is synced


async def test_it_ends_while_it_waits_when_it_is_told_to():
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(0.01, stop.set)
    async with asyncio.timeout(5):
        await until_first([asyncio.Event().wait()], stop)
