"""Replicas that span nodes: groups instead of a Deployment, back again, and a cluster that has none."""

from __future__ import annotations

import pytest

from tandem_operator.loop.reconcile import reconcile
from tandem_operator.loop.refs import Done, Stalled
from tandem_operator.loop.resync import fill_cache
from tests.loop.test_passes import REF, condition, converge

VLLM = {"engine": {"name": "vllm", "image": "vllm:1"}, "transfer": {"backend": "nixl"}}


@pytest.fixture
def spread(edit):
    """The prefill pool's replicas need so many tensor ranks."""

    def choose(tensor):
        edit(lambda spec: (spec.update(VLLM), spec["pools"][0].update(parallelism={"tensor": tensor})))

    return choose


def kinds(api, name):
    return {kind for kind, _, found in api.items if found == name and kind in {"Deployment", "LeaderWorkerSet"}}


async def test_a_replica_over_two_nodes_is_a_group_and_back_again(api, start, spread):
    spread(16)
    world = await start()
    await converge(api, world)
    assert kinds(api, "chat-prefill") == {"LeaderWorkerSet"}
    assert kinds(api, "chat-decode") == {"Deployment"}
    assert condition(api, "Ready")["status"] == "True"
    before = len(api.writes)
    assert isinstance(await reconcile(world, REF), Done)
    await reconcile(await start(), REF)
    assert api.writes[before:] == [], "idle passes write nothing"
    spread(8)
    await fill_cache(world)
    await converge(api, world)
    assert kinds(api, "chat-prefill") == {"Deployment"}


async def test_drift_of_a_group_is_repaired(api, start, spread):
    spread(16)
    world = await start()
    await converge(api, world)
    before = api.state()
    groups = api.find("LeaderWorkerSet", "chat-prefill")
    groups["spec"]["leaderWorkerTemplate"]["size"] = 4
    api.store("LeaderWorkerSet", groups)
    await fill_cache(world)
    await converge(api, world)
    assert api.state() == before


async def test_without_the_api_the_resource_says_what_to_install(api, start, spread):
    api.unserved.add("LeaderWorkerSet")
    spread(16)
    world = await start()
    assert isinstance(await reconcile(world, REF), Stalled)
    assert condition(api, "Stalled")["reason"] == "LeaderWorkerSetMissing"
    assert "prefill spans nodes" in condition(api, "Stalled")["message"]
    api.unserved.clear()
    await fill_cache(world)
    await converge(api, world)
    assert condition(api, "Stalled") is None
    assert kinds(api, "chat-prefill") == {"LeaderWorkerSet"}


@pytest.mark.parametrize(
    ("parallelism", "words"),
    [
        pytest.param({"tensor": 9}, "cannot be shared out evenly", id="9 over 8 and 1"),
        pytest.param({"tensor": 8, "data": 2}, "not data", id="vllm's data ranks"),
    ],
)
async def test_what_cannot_be_spread_stalls(api, start, edit, parallelism, words):
    edit(lambda spec: (spec.update(VLLM), spec["pools"][0].update(parallelism=parallelism)))
    await reconcile(await start(), REF)
    assert condition(api, "Stalled")["reason"] == "InvalidSpec"
    assert words in condition(api, "Stalled")["message"]
