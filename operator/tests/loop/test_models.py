"""A model's way: pulled before the first worker, again for another revision, and what the status says of it."""

from __future__ import annotations

import pytest

from tandem_operator.loop.observe import start_of
from tandem_operator.loop.reconcile import reconcile
from tandem_operator.loop.refs import Done, Stalled, Waiting
from tandem_operator.loop.resync import fill_cache
from tests.loop.test_passes import KIND, REF, condition, converge, replicas, status

CREATED = "2026-01-01T00:00:00Z"


@pytest.fixture
def pulled(edit):
    """A hub's model with a shared cache; gives a way to another revision."""

    def choose(revision="r1", cache=True):
        model = {"source": "hf://owner/name", "servedName": "m", "revision": revision}
        edit(lambda spec: spec.update(model=model | ({"cache": {"persistentVolumeClaim": "models"}} if cache else {})))

    choose()
    return choose


async def ended(api, world):
    """The Job's own controller does its work."""
    api.settle()
    await fill_cache(world)


async def up(api, world):
    await reconcile(world, REF)
    await ended(api, world)
    await converge(api, world)


def jobs(api):
    return [job["metadata"]["name"] for job in api.of("Job")]


async def test_no_worker_starts_before_the_model_is_there(api, start, pulled):
    world = await start()
    outcome = await reconcile(world, REF)
    assert isinstance(outcome, Waiting)
    assert (len(jobs(api)), replicas(api)) == (1, {})
    assert condition(api, "Reconciling")["reason"] == "PullingModel"
    await ended(api, world)
    await converge(api, world)
    assert replicas(api) == {"chat-prefill": 1, "chat-decode": 2, "chat-router": 1}
    assert condition(api, "Reconciling") is None
    assert status(api)["modelRevision"] == "r1"


async def test_idle_passes_write_nothing_and_a_restart_neither(api, start, pulled):
    world = await start()
    await up(api, world)
    before = len(api.writes)
    assert isinstance(await reconcile(world, REF), Done)
    await reconcile(await start(), REF)
    assert api.writes[before:] == []


async def test_another_revision_is_pulled_while_the_former_serves(api, start, pulled):
    world = await start()
    await up(api, world)
    (former,) = jobs(api)
    pulled("r2")
    await fill_cache(world)
    assert isinstance(await reconcile(world, REF), Waiting)
    args = api.find("Deployment", "chat-decode")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "r1" in args, "the former revision's workers serve on"
    assert status(api)["modelRevision"] == "r1"
    await ended(api, world)
    await converge(api, world)
    assert former not in jobs(api)
    assert len(jobs(api)) == 1


async def test_without_the_cache_the_job_goes(api, start, pulled):
    world = await start()
    await up(api, world)
    pulled(cache=False)
    await fill_cache(world)
    await converge(api, world)
    assert jobs(api) == []


async def test_a_pull_that_failed_stalls_with_its_last_words(api, start, pulled):
    world = await start()
    await reconcile(world, REF)
    (name,) = jobs(api)
    job = api.find("Job", name)
    api.store("Job", job | {"status": {"conditions": [{"type": "Failed", "status": "True", "message": "limit"}]}})
    ended = {"terminated": {"exitCode": 2, "message": "hf://owner/name is gated\n", "finishedAt": CREATED}}
    labels = {"tandem.dev/resource": "chat", "app.kubernetes.io/managed-by": "tandem-operator"}
    metadata = {"name": f"{name}-x", "namespace": "serving", "labels": labels, "creationTimestamp": CREATED}
    pod = {"kind": "Pod", "metadata": metadata, "status": {"containerStatuses": [{"name": "model", "state": ended}]}}
    api.store("Pod", pod)
    await fill_cache(world)
    outcome = await reconcile(world, REF)
    assert isinstance(outcome, Stalled)
    assert condition(api, "Stalled")["reason"] == "ModelPullFailed"
    assert "hf://owner/name is gated" in condition(api, "Stalled")["message"]
    del api.items["Job", "serving", name]
    await fill_cache(world)
    await up(api, world)
    assert condition(api, "Stalled") is None


async def test_the_planner_is_told_how_long_a_start_took(api, start):
    world = await start()
    await converge(api, world)
    await fill_cache(world)
    seen = []
    world.recorder.write = lambda ref, facts, now, decision: seen.append(facts.start_s)
    world.asked.clear()
    world.fleet.look(REF)
    body = api.find(KIND, "chat")
    body["metadata"]["generation"] += 1
    api.store(KIND, body)
    await fill_cache(world)
    await reconcile(world, REF)
    assert seen == [200.0]


def pod(ready_at, restarts=0, ready="True"):
    conditions = [{"type": "Ready", "status": ready, "lastTransitionTime": f"2026-01-01T{ready_at}Z"}]
    found = {"conditions": conditions, "containerStatuses": [{"restartCount": restarts}]}
    return {"metadata": {"creationTimestamp": CREATED}, "status": found}


@pytest.mark.parametrize(
    ("workers", "seconds"),
    [
        pytest.param([], None, id="no worker"),
        pytest.param([pod("00:01:00", ready="False")], None, id="none is ready"),
        pytest.param([pod("00:01:00", restarts=1)], None, id="it began anew"),
        pytest.param([pod("00:01:00")], 60.0, id="one"),
        pytest.param([pod("00:01:00"), pod("05:00:00")], 60.0, id="one lost its readiness later"),
        pytest.param([pod("00:01:00"), pod("00:03:00"), pod("00:02:00")], 120.0, id="the middle of three"),
    ],
)
def test_how_long_a_start_takes(workers, seconds):
    assert start_of(workers) == seconds
