"""Autoscalers' words on a pod without a node: read, quoted, followed; and silence costs nothing."""

from __future__ import annotations

import copy

import pytest

from tandem_operator.edges.errors import ApiError
from tandem_operator.loop import growth
from tandem_operator.loop.growth import newest_words
from tandem_operator.loop.reconcile import reconcile
from tandem_operator.loop.resync import fill_cache

from .conftest import REF
from .test_passes import condition, converge


def event(note, who="cluster-autoscaler", reason="NotTriggerScaleUp", pod="w", at="2026-01-01T00:00:10Z", **more):
    about = {"kind": "Pod", "name": pod}
    return {"reason": reason, "note": note, "reportingController": who, "regarding": about, "eventTime": at, **more}


@pytest.mark.parametrize(
    ("events", "words"),
    [
        pytest.param([], "", id="nobody spoke"),
        pytest.param([event("2 max node group size reached")], "NotTriggerScaleUp: 2 max node group", id="no room"),
        pytest.param([event("pool-1 1->2", reason="TriggeredScaleUp")], "autoscaler: TriggeredScaleUp", id="it grows"),
        pytest.param([event("no type fits", "karpenter", "FailedScheduling")], "karpenter: FailedSch", id="karpenter"),
        pytest.param([event("0/3", "default-scheduler", "FailedScheduling")], "", id="the scheduler's own"),
        pytest.param([event("of another", pod="v")], "", id="another pod's"),
        pytest.param(
            [event("old"), event("new", at="2026-01-01T00:00:20.000000Z")], "NotTriggerScaleUp: new", id="the newest"
        ),
        pytest.param(
            [
                event("again", series={"lastObservedTime": "2026-01-01T09:00:00Z"}),
                event("b", at="2026-01-01T08:00:00Z"),
            ],
            "again",
            id="a series",
        ),
        pytest.param(
            [event("by source", who="", deprecatedSource={"component": "cluster-autoscaler"})],
            "cluster-autoscaler: NotTrigger",
            id="an older client",
        ),
        pytest.param([event("x" * 5000)], "…", id="long words are cut"),
    ],
)
def test_the_newest_words(events, words):
    found = newest_words(events, "w")
    assert words in found
    assert bool(found) == bool(words)
    assert len(found) < 600


def lose_node(api, message="0/3 nodes are available: 3 Insufficient nvidia.com/gpu."):
    pod = copy.deepcopy(next(p for p in api.of("Pod") if "decode" in p["metadata"]["name"]))
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    api.store("Pod", {**pod, "status": {"phase": "Pending", "conditions": [said]}})
    return pod["metadata"]["name"]


def speak(api, pod, number, note, reason="NotTriggerScaleUp"):
    metadata = {"name": f"{pod}.{number}", "namespace": REF.namespace}
    api.store("Event", {"metadata": metadata, **event(note, reason=reason, pod=pod, at=f"2026-01-01T00:00:{number}Z")})


async def passes(api, world, monkeypatch):
    monkeypatch.setattr(growth, "EVERY_S", 0.0)  # each pass asks
    await fill_cache(world)
    for _ in range(3):
        await reconcile(world, REF)


async def test_the_condition_quotes_and_follows_them(api, start, monkeypatch):
    world = await start()
    await converge(api, world)
    pod = lose_node(api)
    await passes(api, world, monkeypatch)
    assert "Insufficient nvidia.com/gpu" in condition(api, "ScalingLimited")["message"]
    for number, words in ((10, "max node group size reached"), (20, "no matching instance type")):
        speak(api, pod, number, words)
        await passes(api, world, monkeypatch)
        found = condition(api, "ScalingLimited")
        assert found["reason"] == "Unschedulable"
        assert f"cluster-autoscaler: NotTriggerScaleUp: {words}" in found["message"]
    before = len(api.writes)
    lose_node(api, "0/9 nodes are available: 9 Insufficient nvidia.com/gpu.")
    await passes(api, world, monkeypatch)
    assert api.writes[before:] == [], "the same words with other numbers, and idle passes, write nothing"


async def test_events_that_cannot_be_read_stop_no_pass(api, start, monkeypatch):
    async def refused(namespace, pod):
        raise ApiError("Forbidden", "cannot list events")

    world = await start()
    await converge(api, world)
    lose_node(api)
    api.events_on_pod = refused
    await passes(api, world, monkeypatch)
    assert condition(api, "ScalingLimited")["reason"] == "Unschedulable"


async def test_nobody_is_asked_while_all_pods_have_nodes(api, start, monkeypatch):
    async def asked(namespace, pod):
        raise AssertionError(f"asked for {namespace}/{pod}")

    api.events_on_pod = asked
    world = await start()
    await converge(api, world)
    await passes(api, world, monkeypatch)
