"""Two operators, one Lease: one works, the other waits; time is a variable."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tandem_operator.edges.errors import ApiError, ConflictError
from tandem_operator.loop import leader as module
from tandem_operator.loop import main
from tandem_operator.loop.leader import LEASE_S, SETTLE_S, Leader, LostLeadershipError

from .conftest import Api

SYSTEM = "tandem-system"


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Leases(Api):
    """The API server's part: a replace of an older version is a conflict."""

    away = False
    refused = 0
    silent = 0  # so many of the next requests get no answer

    async def get(self, kind, namespace, name):
        if self.silent:
            self.silent -= 1
            await asyncio.Event().wait()
        if self.away:
            self.refused += 1
            raise ApiError("Unreachable", "no answer")
        return await super().get(kind, namespace, name)

    async def replace(self, manifest):
        live = self.items["Lease", SYSTEM, "tandem-operator"]
        if live["metadata"]["resourceVersion"] != manifest["metadata"]["resourceVersion"]:
            raise ConflictError("Conflict", "newer")
        return self.store("Lease", manifest)

    @property
    def lease(self):
        return self.items["Lease", SYSTEM, "tandem-operator"]["spec"]


@pytest.fixture
def leases():
    return Leases()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def claim(leases, clock):
    return lambda name: Leader(leases, SYSTEM, name, clock)


async def test_the_first_gets_it_and_the_second_waits(claim, leases, clock):
    one, two = claim("one"), claim("two")
    assert await one._tried()
    assert not await two._tried()
    clock.now += LEASE_S - 1
    assert await one._tried(), "renewed"
    assert not await two._tried(), "a renewal was seen: the time begins anew"
    clock.now += LEASE_S - 1
    assert not await two._tried()
    clock.now += 1
    assert await two._tried(), "nothing was renewed for a lease's length"
    assert (leases.lease["holderIdentity"], leases.lease["leaseTransitions"]) == ("two", 1)
    assert not await one._tried(), "the former one sees it and takes nothing back"


async def test_a_restarted_holder_goes_on_at_once(claim):
    assert await claim("one")._tried()
    assert await claim("one")._tried()


async def test_of_two_that_see_it_free_one_gets_it(claim, leases, clock):
    await claim("gone")._tried()
    one, two = claim("one"), claim("two")
    for waiting in (one, two):
        assert not await waiting._tried()
    clock.now += LEASE_S
    assert sorted(await asyncio.gather(one._tried(), two._tried())) == [False, True]


async def test_what_is_released_is_taken_at_once(claim, leases):
    one, two = claim("one"), claim("two")
    assert await one._tried()
    one.elected.set()
    await one.release()
    assert leases.lease["holderIdentity"] == ""
    assert await two._tried()
    two.elected.set()
    await one.release()
    assert leases.lease["holderIdentity"] == "two", "nobody releases what is another's"


@contextlib.asynccontextmanager
async def running(leader):
    task = asyncio.create_task(leader.run())
    try:
        await asyncio.wait_for(leader.elected.wait(), 10)
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(module, "RENEW_EVERY_S", 0.01)
    monkeypatch.setattr(module, "GIVE_UP_AFTER_S", 0.5)
    monkeypatch.setattr(module, "TRY_S", 0.1)
    monkeypatch.setattr(module, "AGAIN_S", 0.01)


async def test_parts_wait_for_the_election(claim, leases, quick):
    begun = []

    async def part(name):
        begun.append(name)

    one, two = claim("one"), claim("two")
    waiting = asyncio.create_task(two.after_election(part("two")))
    async with running(one):
        await one.after_election(part("one"))
        assert not await two._tried()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert begun == ["one"]


@pytest.mark.parametrize("how", ["the API server is away", "another has it"])
async def test_who_loses_it_stops(leases, quick, how):
    one = Leader(leases, SYSTEM, "one")
    async with running(one) as task:
        if how == "another has it":
            lease = await leases.get("Lease", SYSTEM, "tandem-operator")
            await leases.replace({**lease, "spec": {**lease["spec"], "holderIdentity": "two"}})
        else:
            leases.away = True
        with pytest.raises(LostLeadershipError):
            await asyncio.wait_for(task, 10)


async def test_a_short_absence_of_the_api_server_is_borne(leases, quick):
    one = Leader(leases, SYSTEM, "one")
    async with running(one) as task:
        leases.away = True
        await until(lambda: leases.refused > 1)
        leases.away = False
        renewed = leases.lease["renewTime"]
        await until(lambda: leases.lease["renewTime"] != renewed)
        assert not task.done()


async def test_one_answer_that_never_comes_is_borne(leases, quick):
    one = Leader(leases, SYSTEM, "one")
    async with running(one) as task:
        leases.silent = 1
        await until(lambda: not leases.silent)
        renewed = leases.lease["renewTime"]
        await until(lambda: leases.lease["renewTime"] != renewed)
        assert not task.done()


async def until(true):
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 the stand-in has no events
            await asyncio.sleep(0.001)


async def test_who_has_a_neighbour_waits_until_it_was_seen(leases, clock, quick):
    """It holds the Lease, so that a cluster-wide operator sees it, and works only then."""
    near = Leader(leases, SYSTEM, "near", clock, settle_s=SETTLE_S)
    task = asyncio.create_task(near.run())
    await until(lambda: ("Lease", SYSTEM, "tandem-operator") in leases.items)
    clock.now += SETTLE_S - 1
    await asyncio.sleep(0.05)
    assert not near.elected.is_set()
    clock.now += 1
    await asyncio.wait_for(near.elected.wait(), 10)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_who_stood_still_may_not_write_before_it_has_looked(leases, clock, quick, monkeypatch):
    """Its parts go on where they were, in the middle of a pass, before it knows who has the Lease."""
    monkeypatch.setattr(module, "RENEW_EVERY_S", 3600)
    one = Leader(leases, SYSTEM, "one", clock)
    assert not one.holds(), "it has not asked yet"
    async with running(one):
        assert one.holds()
        clock.now += module.GIVE_UP_AFTER_S
        assert not one.holds()


async def test_who_stood_still_while_it_asked_counts_from_before(clock, quick, monkeypatch):
    """Whoever saw its Lease written has counted since then."""
    monkeypatch.setattr(module, "RENEW_EVERY_S", 3600)

    class Slow(Leases):
        async def create(self, manifest):
            clock.now += module.GIVE_UP_AFTER_S
            return await super().create(manifest)

    one = Leader(Slow(), SYSTEM, "one", clock)
    async with running(one):
        assert not one.holds()


def test_without_an_election_it_always_may(leases):
    one = Leader(leases, SYSTEM, "one")
    one.appoint()
    assert one.elected.is_set()
    assert one.holds()


async def test_what_loses_a_cancellation_is_cancelled_again(monkeypatch):
    monkeypatch.setattr(main, "CANCEL_AGAIN_S", 0.01)

    async def deaf():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        await asyncio.sleep(3600)

    task = asyncio.create_task(deaf())
    await asyncio.sleep(0)
    await asyncio.wait_for(main.end(task), 10)
    assert task.cancelled()
