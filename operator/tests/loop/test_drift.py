"""What somebody else does to a child is repaired, and said once."""

from __future__ import annotations

import copy

import pytest

from tandem_operator.loop.handlers import take_event
from tandem_operator.loop.reconcile import reconcile
from tandem_operator.loop.refs import Ref
from tandem_operator.loop.resync import fill_cache

KIND, REF = "DisaggregatedInference", Ref("serving", "chat")


def said(api):
    """Notes of the events about drift."""
    return [e["note"] for e in api.of("Event") if e["reason"] == "DriftRepaired"]


async def passes(api, world, count=6):
    for _ in range(count):
        await reconcile(world, REF)
        api.settle()
        await fill_cache(world)


def changed(api, world, kind, name, change):
    """Somebody changes a child, and the watch says so."""
    item = copy.deepcopy(api.find(kind, name))
    change(item)
    stored = api.store(kind, item)
    take_event(kind, {"type": "MODIFIED", "object": stored}, world.cache, world.queue)


def deleted(api, world, kind, name):
    item = api.items.pop((kind, REF.namespace, name))
    item["metadata"]["resourceVersion"] = str(next(api.version))
    take_event(kind, {"type": "DELETED", "object": item}, world.cache, world.queue)


def scaled(api, world, replicas):
    changed(api, world, "Deployment", "chat-decode", lambda item: item["spec"].update(replicas=replicas))


@pytest.mark.parametrize(
    ("drift", "words"),
    [
        pytest.param(lambda a, w: scaled(a, w, 0), "spec.replicas of Deployment chat-decode was changed", id="fewer"),
        pytest.param(lambda a, w: scaled(a, w, 4), "spec.replicas of Deployment chat-decode was changed", id="more"),
        pytest.param(
            lambda a, w: changed(a, w, "Service", "chat-router", lambda i: i["spec"]["ports"][0].update(port=80)),
            "spec.ports[0].port of Service chat-router was changed",
            id="another port",
        ),
        pytest.param(
            lambda a, w: deleted(a, w, "Service", "chat-router"), "Service chat-router was deleted", id="deleted"
        ),
    ],
)
async def test_drift_is_repaired_and_said_once(api, start, drift, words):
    world = await start()
    await passes(api, world)
    before = api.state()
    assert said(api) == [], "what the operator makes itself is no drift"
    drift(api, world)
    await passes(api, world)
    assert api.state() == before
    (note,) = said(api)
    assert note.startswith(words)
    assert world.metrics.drift_repairs._value.get() == 1


async def test_what_the_operator_or_an_edit_changes_is_no_drift(api, start, edit):
    world = await start()
    await passes(api, world)

    async def edited(change):
        edit(change)
        take_event(KIND, {"type": "MODIFIED", "object": api.find(KIND, "chat")}, world.cache, world.queue)
        await passes(api, world)

    await edited(lambda spec: spec["pools"].append(spec["pools"][1] | {"name": "more"}))
    assert api.find("Deployment", "chat-more")
    deleted_by_prune = copy.deepcopy(api.find("Deployment", "chat-more"))
    await edited(lambda spec: spec["pools"].pop())
    assert api.find("Deployment", "chat-more") is None
    deleted_by_prune["metadata"]["resourceVersion"] = str(next(api.version))
    take_event("Deployment", {"type": "DELETED", "object": deleted_by_prune}, world.cache, world.queue)
    await edited(lambda spec: spec["pools"].append(spec["pools"][1] | {"name": "more"}))
    await edited(lambda spec: spec.update(router={"replicas": 2}))
    assert api.find("Deployment", "chat-more")
    assert said(api) == []


async def test_a_new_resource_of_an_earlier_ones_name_owes_it_nothing(api, start):
    world = await start()
    await passes(api, world)
    gone = copy.deepcopy(api.find("Service", "chat-router"))
    gone["metadata"]["ownerReferences"][0]["uid"] = "of-the-former-one"
    api.items["Service", REF.namespace, "chat-router"] = gone
    deleted(api, world, "Service", "chat-router")
    await passes(api, world)
    assert api.find("Service", "chat-router")
    assert said(api) == []
