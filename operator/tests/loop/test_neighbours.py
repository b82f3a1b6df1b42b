"""A cluster-wide operator beside one of a single namespace: they never both write there."""

from __future__ import annotations

import pytest

from tandem_operator.edges.errors import ApiError
from tandem_operator.loop.leader import LEASE_S, NAME, RENEW_EVERY_S, SETTLE_S, Leader
from tandem_operator.loop.neighbours import Neighbours
from tandem_operator.loop.reconcile import reconcile
from tandem_operator.loop.refs import Failed, Waiting

from .conftest import REF
from .test_leader import Clock, Leases
from .test_passes import converge

NEAR = REF.namespace


@pytest.fixture
def clock():
    return Clock()


class Near(Leases):
    """Counts how often the Lease was asked for."""

    asked = 0

    async def get(self, kind, namespace, name):
        self.asked += kind == "Lease"
        return await super().get(kind, namespace, name)

    async def replace(self, manifest):
        return self.store("Lease", manifest)


def pass_time(clock, seconds):
    clock.now += seconds


@pytest.mark.parametrize(
    ("own", "holder"),
    [pytest.param("tandem-system", "near", id="another's"), pytest.param(NEAR, "", id="where the own Lease is")],
)
async def test_who_holds_the_lease_of_a_namespace(clock, own, holder):
    leases = Near()
    assert await Leader(leases, NEAR, "near", clock)._tried()
    assert await Neighbours(leases, own, clock).holder_in(NEAR) == holder


async def test_nobody_where_there_is_no_lease(clock):
    assert await Neighbours(Near(), "tandem-system", clock).holder_in(NEAR) == ""


async def test_a_holder_that_renews_stays_one_that_does_not_is_gone(clock):
    leases = Near()
    near, wide = Leader(leases, NEAR, "near", clock), Neighbours(leases, "tandem-system", clock)
    assert await near._tried()
    for _ in range(5):
        pass_time(clock, RENEW_EVERY_S)
        assert await near._tried()
        leases.items["Lease", NEAR, NAME]["spec"]["renewTime"] = f"at {clock.now}"
        assert await wide.holder_in(NEAR) == "near"
    pass_time(clock, LEASE_S - 1)
    assert await wide.holder_in(NEAR) == "near"
    pass_time(clock, RENEW_EVERY_S)
    assert await wide.holder_in(NEAR) == "", "not renewed for a lease's length"


async def test_what_is_released_is_nobodys(clock):
    leases = Near()
    near, wide = Leader(leases, NEAR, "near", clock), Neighbours(leases, "tandem-system", clock)
    assert await near._tried()
    near.elected.set()
    await near.release()
    assert await wide.holder_in(NEAR) == ""


async def test_a_lease_is_looked_at_once_in_a_while_and_seen_before_its_holder_works(clock):
    leases = Near()
    wide = Neighbours(leases, "tandem-system", clock)
    for _ in range(10):
        assert await wide.holder_in(NEAR) == ""
    assert leases.asked == 1
    assert await Leader(leases, NEAR, "near", clock)._tried()
    pass_time(clock, SETTLE_S)
    assert await wide.holder_in(NEAR) == "near"


async def test_the_cluster_wide_one_writes_nothing_but_one_event(api, start, clock):
    await Leader(api, NEAR, "near", clock)._claim()
    world = await start()
    before = len(api.writes)
    for _ in range(3):
        assert isinstance(outcome := await reconcile(world, REF), Waiting)
        assert (outcome.reason, outcome.retry_s) == ("LeftToOther", LEASE_S)
    (event,) = api.writes[before:]
    assert event[:2] == ("create", "Event")
    (posted,) = api.of("Event")
    assert posted["reason"] == "LeftToOther"
    del api.items["Lease", NEAR, NAME]
    world.neighbours = Neighbours(api, "tandem-system", clock)
    await converge(api, world)
    assert api.of("Deployment"), "the namespace's operator is gone: this one has it again"


async def test_where_it_cannot_be_known_nothing_is_done(api, start):
    async def refused(kind, namespace, name):
        raise ApiError("Forbidden", "cannot get leases")

    world = await start()
    api.get, before = refused, len(api.writes)
    assert isinstance(await reconcile(world, REF), Failed)
    assert api.writes[before:] == []
