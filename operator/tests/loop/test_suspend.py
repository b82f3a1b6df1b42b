"""Suspended and back: no pods, everything else kept, the target above all."""

from __future__ import annotations

import contextlib

import pytest

from tandem_operator.loop.reconcile import reconcile
from tandem_operator.loop.resync import fill_cache

from .conftest import CrashedError
from .test_passes import KIND, REF, aim, condition, converge, replicas, roles, status


def suspend(edit, value):
    edit(lambda spec: spec.update(suspend=value))


async def settle(api, world):
    await fill_cache(world)
    await converge(api, world)


def kstatus(found):
    """As GitOps tools read it (kstatus): the abnormal conditions first, then Ready."""
    answers = {c["type"]: c["status"] for c in found["conditions"]}
    if answers.get("Reconciling") == "True":
        return "InProgress"
    if answers.get("Stalled") == "True":
        return "Failed"
    return {"True": "Current", "Unknown": "InProgress"}.get(answers["Ready"], "InProgress")


@pytest.mark.parametrize("lost", [False, True], ids=["", "the status is lost meanwhile"])
async def test_suspended_and_back(api, start, edit, lost):
    world = await start()
    await converge(api, world)
    if not lost:
        aim(api, {"prefill": 2, "decode": 3}, 3, 2)
    await settle(api, world)
    before = replicas(api), roles(api), status(api)["decision"]["target"]

    suspend(edit, True)
    await settle(api, world)
    assert set(replicas(api).values()) == {0}
    assert api.of("Pod") == []
    assert len(api.of("Service")) == 2, "addresses stay"
    assert kstatus(status(api)) == "Current"
    assert condition(api, "Ready")["reason"] == "Suspended"
    assert status(api)["decision"]["reason"] == "Suspended"
    assert status(api)["decision"]["target"] == before[2]
    assert {pool["desired"] for pool in status(api)["pools"].values()} == {0}

    if lost:
        del api.find(KIND, "chat")["status"]
        world = await start()
        await settle(api, world)
    suspend(edit, False)
    await settle(api, world)
    assert (replicas(api), roles(api), status(api)["decision"]["target"]) == before
    assert condition(api, "Ready")["reason"] == "Serving"
    assert kstatus(status(api)) == "Current"


async def test_it_is_in_progress_until_its_children_are_there(api, start, edit):
    """Killed after any write: whoever waits for it (`kubectl wait`, a GitOps tool) waits on."""
    suspend(edit, True)
    while api.writes.count(("status", KIND, REF.namespace, REF.name)) < 2:
        assert api.writes == [] or kstatus(status(api)) == "InProgress"
        api.crash_after = 0
        with contextlib.suppress(CrashedError):
            await reconcile(await start(), REF)
    assert kstatus(status(api)) == "Current"
    assert len(api.of("Deployment")) == 3


async def test_a_suspended_resource_is_silent_when_idle(api, start, edit):
    suspend(edit, True)
    world = await start()
    await settle(api, world)
    assert api.of("Pod") == []
    assert status(api)["decision"]["target"]["pools"] == {"prefill": 1, "decode": 2}, "it has a target to come back to"
    before = len(api.writes)
    for _ in range(3):
        await reconcile(world, REF)
    await reconcile(await start(), REF)
    assert api.writes[before:] == []


async def test_while_pods_still_end_it_is_in_progress(api, start, edit):
    world = await start()
    await converge(api, world)
    suspend(edit, True)
    await fill_cache(world)
    await reconcile(world, REF)
    assert set(replicas(api).values()) == {0}
    assert "still finish" in condition(api, "Reconciling")["message"]
    assert kstatus(status(api)) == "InProgress"


async def test_the_target_is_young_again_after_the_return(api, start, edit):
    """Else workers that start would count as stuck, by a decision of long ago."""
    world = await start()
    await converge(api, world)
    first = status(api)["decision"]
    suspend(edit, True)
    await settle(api, world)
    assert (status(api)["decision"]["id"], status(api)["decision"]["at"]) == (first["id"], first["at"])
    suspend(edit, False)
    await settle(api, world)
    assert status(api)["decision"]["id"] != first["id"]
