"""Scale to zero in passes: workers go, routers stay, the first request brings the same target back."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tandem_operator.loop.fleet import Look
from tandem_operator.loop.reconcile import reconcile
from tandem_operator.loop.resync import fill_cache
from tandem_operator.plan.facts import Answer, RoleUse, Verdict, Window

from .conftest import KIND, REF
from .test_passes import aim, condition, converge, replicas, roles, status
from .test_suspend import kstatus

AFTER_S = 60
FRESH = Verdict(Answer.YES, "NoTraffic", "3 targets are up, no request arrived in the window")


def idle(now, **changes):
    """Twenty windows in which nothing happened."""
    window = Window(now, 30, 0.0, 0.0, prefill=RoleUse(0.0, waiting=0.0), decode=RoleUse(0.0, waiting=0.0), **changes)
    return tuple(replace(window, at=now - timedelta(seconds=15 * n)) for n in reversed(range(20)))


async def look(api, world, number, held=0.0, **changes):
    """The fleet observer looked; then passes until nothing is left to do."""
    pods = {p["metadata"]["name"]: 0.0 for p in api.of("Pod") if "router" not in p["metadata"]["name"]}
    now = datetime.now(UTC)
    seen = Look(FRESH, idle(now), loads=pods, held=held, at=now, number=number, **changes)
    world.fleet.look = lambda _ref: seen
    await fill_cache(world)
    await converge(api, world)


@pytest.fixture
def may_sleep(edit):
    edit(lambda spec: spec.update(scaleToZero={"afterSeconds": AFTER_S, "holdSeconds": 120}))


async def test_asleep_and_woken(api, start, may_sleep):
    world = await start()
    await converge(api, world)
    aim(api, {"prefill": 2, "decode": 3}, 3, 2)
    await fill_cache(world)
    await converge(api, world)
    before = replicas(api), roles(api), status(api)["decision"]["target"]

    await look(api, world, 1)
    assert replicas(api) == {"chat-prefill": 0, "chat-decode": 0, "chat-router": 1}
    assert kstatus(status(api)) == "Current"
    assert condition(api, "Ready")["reason"] == "Asleep"
    assert "a start takes about 200 s" in condition(api, "Ready")["message"]
    assert status(api)["sleep"]["startSeconds"] == 200
    assert status(api)["decision"]["reason"] == "Asleep"
    assert {pool["desired"] for pool in status(api)["pools"].values()} == {0}
    writes = len(api.writes)
    await look(api, world, 2)
    await reconcile(await start(), REF)
    assert api.writes[writes:] == [], "it sleeps without a word"

    await look(api, world, 3, held=1.0)
    assert (replicas(api), roles(api), status(api)["decision"]["target"]) == before
    assert condition(api, "Ready")["reason"] == "Serving"
    assert status(api)["sleep"]["asleep"] is False
    reasons = [event["reason"] for event in api.of("Event")]
    assert (reasons.count("FellAsleep"), reasons.count("WokenUp")) == (1, 1)


async def test_while_it_starts_it_is_in_progress(api, start, may_sleep):
    world = await start()
    await converge(api, world)
    await look(api, world, 1)
    now = datetime.now(UTC)
    seen = Look(FRESH, idle(now), held=1.0, at=now, number=2)
    world.fleet.look = lambda _ref: seen
    for _ in range(3):
        await reconcile(world, REF)
        await fill_cache(world)
    assert replicas(api)["chat-decode"] == 2
    assert kstatus(status(api)) == "InProgress"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"metrics": Verdict(Answer.UNKNOWN, "NoSamples", "no target")}, id="no metrics"),
        pytest.param({"history": ()}, id="no history"),
        pytest.param({"loads": {}}, id="load not known"),
        pytest.param({"held": 1.0}, id="a request waits"),
    ],
)
async def test_what_is_not_known_keeps_it_awake(api, start, may_sleep, change):
    world = await start()
    await converge(api, world)
    before = replicas(api)
    now = datetime.now(UTC)
    seen = replace(Look(FRESH, idle(now), loads={"w": 0.0}, held=0.0, at=now, number=1), **change)
    world.fleet.look = lambda _ref: seen
    await converge(api, world)
    assert replicas(api) == before
    assert "sleep" not in status(api)


async def test_without_the_field_it_wakes(api, start, edit, may_sleep):
    world = await start()
    await converge(api, world)
    await look(api, world, 1)
    edit(lambda spec: spec.pop("scaleToZero"))
    await look(api, world, 2)
    assert replicas(api)["chat-decode"] == 2
    assert "sleep" not in status(api)


async def test_a_lost_status_wakes_it(api, start, may_sleep):
    """Then nobody knows that it slept: the children without pods tell nothing, as after suspend."""
    world = await start()
    await converge(api, world)
    await look(api, world, 1)
    del api.find(KIND, "chat")["status"]
    world = await start()
    await fill_cache(world)
    await converge(api, world)
    assert replicas(api)["chat-decode"] == 2


async def test_the_router_is_told_how_long_to_hold(api, start, edit, may_sleep):
    world = await start()
    await converge(api, world)

    def words():
        return api.find("Deployment", "chat-router")["spec"]["template"]["spec"]["containers"][0]["args"]

    assert words()[-2:] == ["--hold-seconds", "120"]
    edit(lambda spec: spec.pop("scaleToZero"))
    await fill_cache(world)
    await converge(api, world)
    assert "--hold-seconds" not in words()
