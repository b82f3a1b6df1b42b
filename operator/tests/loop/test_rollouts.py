"""Rollouts through whole passes: step by step in pairs, paused by unhealthy workers, undone by a reverted spec."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta

import pytest

from tandem_operator.loop import reconcile as reconciling
from tandem_operator.loop.reconcile import reconcile
from tandem_operator.loop.resync import fill_cache

from .test_passes import REF, condition, converge


def ago(kind, status, minutes, **more):
    """A pod's condition that has stood for so long."""
    since = (datetime.now(UTC) - timedelta(minutes=minutes)).isoformat()
    return {"type": kind, "status": status, "lastTransitionTime": since, **more}


def waits(reason, message):
    return {
        "containerStatuses": [
            {"name": "worker", "image": "worker:bad", "state": {"waiting": {"reason": reason, "message": message}}}
        ]
    }


def up_but_not_ready(minutes):
    said = "containers with unready status: [worker]"
    return {"conditions": [ago("PodScheduled", "True", minutes), ago("Ready", "False", minutes, message=said)]}


def no_node(minutes):
    return {"conditions": [ago("PodScheduled", "False", minutes, reason="Unschedulable", message="0/3 nodes: no GPU")]}


IMAGE = waits("ImagePullBackOff", "no such image")


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


def break_new(api, status):
    """New workers are as this status has it."""
    for pod in api.of("Pod"):
        if "status" not in pod and pod["metadata"]["labels"].get("tandem.dev/pool"):
            api.store("Pod", {**copy.deepcopy(pod), "status": status, "broken": True})


def mend_new(api):
    """What was wrong with them passes; they become ready with the next step."""
    for pod in api.of("Pod"):
        if pod.pop("broken", False):
            api.store("Pod", {key: part for key, part in pod.items() if key != "status"})


async def begin_badly(api, world, edit, status):
    """A new image, whose first worker is as this status has it; all that the operator and the controllers then do."""
    image(edit, "worker:bad")
    await fill_cache(world)
    await reconcile(world, REF)
    for _ in range(4):
        api.settle(ready=False)
        break_new(api, status)
        await step(api, world, ready=False)


async def start_of(api, start, edit, **sizes):
    pools(edit, **sizes)
    world = await start()
    await converge(api, world)
    (old,) = {revision for _, revision in revisions(api)}
    return world, old


@pytest.mark.parametrize(
    ("sizes", "most", "steps"),
    [
        ({"prefill": 2, "decode": 2}, 1, 4),
        ({"prefill": 2, "decode": 4}, 1, 6),
        ({"prefill": 1, "decode": 1}, 1, 2),
        ({"prefill": 2, "decode": 2}, 2, 2),
        ({"prefill": 2, "decode": 4}, 2, 4),
        ({"prefill": 4, "decode": 4}, 4, 2),
        ({"prefill": 3, "decode": 6}, 16, 2),
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
        assert sum(away.values()) <= most, "no more at a time, over both roles"
        taken += sum(away.values()) > 0
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


def between_two_tries():
    ended = {"reason": "StartError", "exitCode": 128, "message": "no such command"}
    status = waits("CrashLoopBackOff", "back-off 10s")
    status["containerStatuses"][0] |= {"restartCount": 1, "lastState": {"terminated": ended}}
    return status


UNHEALTHY = [
    pytest.param(IMAGE, "cannot pull worker:bad", id="its image cannot be pulled"),
    pytest.param(waits("CreateContainerConfigError", 'secret "a" not found'), 'secret "a" not found', id="no Secret"),
    pytest.param(waits("RunContainerError", "no such command"), "no such command", id="no such command"),
    pytest.param(between_two_tries(), "no such command", id="no such command, between two tries"),
    pytest.param(up_but_not_ready(46), "not Ready for 45 minutes", id="it never turns ready"),
    pytest.param(no_node(16), "no node for pod", id="it finds no node"),
]


@pytest.mark.parametrize(("status", "words"), UNHEALTHY)
async def test_an_unhealthy_revision_pauses_itself_and_a_revert_heals(api, start, edit, status, words):
    world, old = await start_of(api, start, edit, prefill=2, decode=2)
    await begin_badly(api, world, edit, status)
    stalled = condition(api, "Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "RolloutPaused")
    assert words in stalled["message"]
    assert "revert" in stalled["message"]
    assert paused(api) == {"chat-prefill", "chat-decode"}
    assert condition(api, "Ready")["status"] == "True", "the former revision serves"
    assert sum(count for (_, revision), count in revisions(api).items() if revision == old) == 3

    edit(lambda spec: spec.pop("engine"))
    for _ in range(6):
        await step(api, world)
    await converge(api, world)
    assert revisions(api) == {("prefill", old): 2, ("decode", old): 2}
    assert condition(api, "Stalled") is None
    assert paused(api) == set()


@pytest.mark.parametrize(("status", "words"), UNHEALTHY)
async def test_a_fault_that_passes_lets_the_rollout_go_on(api, start, edit, status, words):
    world, old = await start_of(api, start, edit, prefill=2, decode=2)
    await begin_badly(api, world, edit, status)
    assert words in condition(api, "Stalled")["message"]
    mend_new(api)
    for _ in range(12):
        await step(api, world)
    await converge(api, world)
    assert {revision for _, revision in revisions(api)}.isdisjoint({old})
    assert condition(api, "Stalled") is None


@pytest.mark.parametrize(
    ("status", "most", "words"),
    [
        pytest.param(no_node(1), 4, "no former worker goes meanwhile: no node for pod", id="no node yet"),
        pytest.param(up_but_not_ready(30), 4, "0 of 4 renewed", id="it still loads"),
        pytest.param(no_node(1), 1, "no former worker goes meanwhile: no node for pod", id="no node yet, in turns"),
    ],
)
async def test_what_may_come_up_yet_is_no_fault_and_takes_no_more_workers(api, start, edit, status, most, words):
    world, old = await start_of(api, start, edit, prefill=4, decode=4)
    edit(lambda spec: spec.update(rollout={"maxUnavailable": most}))
    await begin_badly(api, world, edit, status)
    assert condition(api, "Stalled") is None
    assert words in condition(api, "Reconciling")["message"]
    assert sum(count for (_, revision), count in revisions(api).items() if revision == old) == 8 - most


async def test_nobody_of_the_other_role_goes_while_a_new_worker_waits_for_a_node(api, start, edit):
    """Though it is not full what may be away: prefill is of two, and one of them stays."""
    world, old = await start_of(api, start, edit, prefill=2, decode=2)
    edit(lambda spec: spec["pools"][0].update(template={"env": [{"name": "A", "value": "b"}]}))
    edit(lambda spec: spec.update(rollout={"maxUnavailable": 4}))
    await fill_cache(world)
    await reconcile(world, REF)
    api.settle(ready=False)
    break_new(api, no_node(1))
    edit(lambda spec: spec["pools"][1].update(template={"env": [{"name": "A", "value": "b"}]}))
    for _ in range(4):
        await step(api, world, ready=False)
    assert revisions(api) == {("prefill", old): 1, ("decode", old): 2}


async def test_a_pause_that_comes_with_time_alone_is_said_and_said_once(api, start, edit, monkeypatch):
    """Nothing moves in the cluster meanwhile."""
    world, _ = await start_of(api, start, edit, prefill=4, decode=4)
    edit(lambda spec: spec.update(rollout={"maxUnavailable": 2}))
    await begin_badly(api, world, edit, up_but_not_ready(30))
    assert condition(api, "Stalled") is None

    class Later(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(minutes=20)

    monkeypatch.setattr(reconciling, "datetime", Later)
    await reconcile(world, REF)
    assert condition(api, "Stalled")["reason"] == "RolloutPaused"
    before = len(api.writes)
    await reconcile(world, REF)
    assert len(api.writes) == before


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
