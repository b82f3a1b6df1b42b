"""Rollouts through whole passes: step by step in pairs, paused by unhealthy workers, undone by a reverted spec."""

from __future__ import annotations

import copy

import pytest

from tandem_operator.loop.reconcile import reconcile
from tandem_operator.loop.resync import fill_cache

from .test_passes import REF, condition, converge

BAD = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}


def image(edit, name):
    edit(lambda spec: spec.update(engine={"name": "tandem", "image": name}))


def pools(edit, **sizes):
    def change(spec):
        for pool in spec["pools"]:
            count = sizes[pool["name"]]
            pool["replicas"] = {"min": count, "max": count}

    edit(change)


def revisions(api):
    """Workers by pool and revision, and how many of them are ready."""
    found = {}
    for pod in api.of("Pod"):
        labels = pod["metadata"]["labels"]
        if "tandem.dev/pool" in labels:
            key = labels["tandem.dev/pool"], labels["tandem.dev/revision"]
            found[key] = found.get(key, 0) + ("status" in pod and "broken" not in pod)
    return found


def paused(api):
    return {d["metadata"]["name"] for d in api.of("Deployment") if d["spec"].get("paused")}


async def step(api, world, ready=True):
    await fill_cache(world)
    await reconcile(world, REF)
    api.settle(ready)
    await fill_cache(world)
    await reconcile(world, REF)


def break_new(api, wanted):
    """Pods of this image cannot be pulled."""
    for pod in api.of("Pod"):
        if "status" not in pod and pod["metadata"]["labels"].get("tandem.dev/pool"):
            item = copy.deepcopy(pod)
            item["status"] = {"containerStatuses": [{"name": "worker", "image": wanted, "state": BAD}]}
            item["broken"] = True
            api.store("Pod", item)


async def start_of(api, start, edit, **sizes):
    pools(edit, **sizes)
    world = await start()
    await converge(api, world)
    (old,) = {revision for _, revision in revisions(api)}
    return world, old


@pytest.mark.parametrize(
    ("sizes", "most", "steps"),
    [
        ({"prefill": 2, "decode": 2}, 1, 2),
        ({"prefill": 2, "decode": 4}, 1, 4),
        ({"prefill": 1, "decode": 1}, 1, 1),
        ({"prefill": 4, "decode": 4}, 1, 4),
        ({"prefill": 4, "decode": 4}, 2, 2),
        ({"prefill": 3, "decode": 6}, 8, 2),
        ({"prefill": 1, "decode": 1}, 8, 1),
    ],
)
async def test_a_new_image_goes_through_in_pairs(api, start, edit, sizes, most, steps):
    world, old = await start_of(api, start, edit, **sizes)
    edit(lambda spec: spec.update(rollout={"maxUnavailable": most}))
    image(edit, "worker:2")
    taken = 0
    for _ in range(20):
        await step(api, world, ready=False)
        found = revisions(api)
        away = {name: size - sum(n for (p, _), n in found.items() if p == name) for name, size in sizes.items()}
        assert max(away.values()) <= most, "no more of a role at a time"
        taken += max(away.values()) > 0
        if min(sizes.values()) > 1:
            assert any(found.get(("prefill", r), 0) and found.get(("decode", r), 0) for _, r in found), found
        api.settle()
        if not any(revision == old for _, revision in found):
            break
    await fill_cache(world)
    await converge(api, world)
    assert {revision for _, revision in revisions(api)}.isdisjoint({old})
    assert taken == steps
    assert paused(api) == set()
    assert condition(api, "Reconciling") is None
    before = len(api.writes)
    await reconcile(await start(), REF)
    assert len(api.writes) == before


async def test_an_unhealthy_revision_pauses_itself_and_a_revert_heals(api, start, edit):
    world, old = await start_of(api, start, edit, prefill=2, decode=2)
    image(edit, "worker:bad")
    await fill_cache(world)
    await reconcile(world, REF)
    api.settle(ready=False)
    break_new(api, "worker:bad")
    for _ in range(4):
        await step(api, world, ready=False)
    stalled = condition(api, "Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "RolloutPaused")
    assert "worker:bad" in stalled["message"]
    assert "revert" in stalled["message"]
    assert paused(api) == {"chat-prefill", "chat-decode"}
    assert condition(api, "Ready")["status"] == "True", "the former revision serves"
    assert revisions(api)["prefill", old] == revisions(api)["decode", old] == 1

    edit(lambda spec: spec.pop("engine"))
    for _ in range(6):
        await step(api, world)
    await converge(api, world)
    assert revisions(api) == {("prefill", old): 2, ("decode", old): 2}
    assert condition(api, "Stalled") is None
    assert paused(api) == set()


async def test_an_edit_that_changes_no_agreement_keeps_the_revision(api, start, edit):
    world, old = await start_of(api, start, edit, prefill=2, decode=2)
    edit(lambda spec: spec["pools"][0].update(template={"env": [{"name": "A", "value": "b"}]}))
    for _ in range(6):
        await step(api, world)
    await converge(api, world)
    assert revisions(api) == {("prefill", old): 2, ("decode", old): 2}
    pods = [p for p in api.of("Pod") if p["metadata"]["labels"].get("tandem.dev/pool") == "prefill"]
    digests = {p["metadata"]["annotations"]["tandem.dev/template"] for p in pods}
    assert len(digests) == 1, "every pod was renewed all the same"


async def test_a_rollout_says_how_far_it_is(api, start, edit):
    world, _ = await start_of(api, start, edit, prefill=2, decode=2)
    image(edit, "worker:2")
    await step(api, world, ready=False)
    assert condition(api, "Reconciling")["message"] == "decode 0 of 2, prefill 0 of 2 renewed"
