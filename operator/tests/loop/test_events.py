"""Events that come late, twice or never, to an operator that lists nothing meanwhile."""

from __future__ import annotations

import copy

import pytest

from tandem_operator.loop.cache import Cache
from tandem_operator.loop.handlers import WATCHED, take_event
from tandem_operator.loop.reconcile import reconcile
from tandem_operator.loop.refs import Done, Ref
from tandem_operator.loop.resync import fill_cache
from tests.loop.passes import converge

KIND, REF = "DisaggregatedInference", Ref("serving", "chat")


def tell(world, what, *items):
    for kind, item in items:
        take_event(kind, {"type": what, "object": copy.deepcopy(item)}, world.cache, world.queue)


def told(api, kind=None, name=None):
    """What there is of a kind (None: all that is watched), and of a name, as it is now."""
    return [
        (key[0], copy.deepcopy(item))
        for key, item in api.items.items()
        if key[0] in ({kind} if kind else WATCHED) and name in {None, key[2]}
    ]


def grow_and_replace(spec):
    """The first pool grows, and another takes the place of the second."""
    spec["pools"][0]["replicas"].update(min=3)
    spec["pools"][1].update(name="other")


OLD = [
    pytest.param((KIND,), id="the old spec"),
    pytest.param(("Deployment", "chat-prefill"), id="a Deployment before it grew"),
    pytest.param(("Deployment", "chat-decode"), id="a Deployment that is gone"),
    pytest.param(("Pod",), id="pods that are gone"),
    pytest.param(("PodDisruptionBudget",), id="disruption budgets of other counts"),
    pytest.param((), id="all that there was"),
]


@pytest.mark.parametrize("what", ["ADDED", "MODIFIED"])
@pytest.mark.parametrize("which", OLD)
async def test_nothing_is_done_for_what_is_old(api, start, edit, which, what):
    """Given a resource whose pools have changed, when events of before come in, then no pass writes."""
    world = await start()
    await converge(api, world)
    old = told(api, *which)
    assert old, "the row tells nothing"
    edit(grow_and_replace)
    await converge(api, world)
    tell(world, "DELETED", *gone(api, old))
    before = api.state(), len(api.writes)
    tell(world, what, *old)
    assert isinstance(await reconcile(world, REF), Done)
    assert (api.state(), len(api.writes)) == before


def ended(api, item):
    """The object as the event of its deletion has it: of a version of its own."""
    return {**item, "metadata": {**item["metadata"], "resourceVersion": str(next(api.version))}}


def gone(api, items):
    """Those that are there no more, as they ended."""
    return [(k, ended(api, i)) for k, i in items if (k, REF.namespace, i["metadata"]["name"]) not in api.items]


async def test_a_deletion_that_comes_late_takes_nothing_that_was_made_again(api, start):
    world = await start()
    await converge(api, world)
    ((_, service),) = told(api, "Service", "chat-router")
    end = ended(api, service)
    del api.items["Service", REF.namespace, "chat-router"]
    await converge(api, world)
    before = api.state(), len(api.writes)
    tell(world, "DELETED", ("Service", end))
    assert world.cache.find("Service", REF.namespace, "chat-router") is not None
    assert isinstance(await reconcile(world, REF), Done)
    assert (api.state(), len(api.writes)) == before


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param("Service", "chat-router", id="a Service"),
        pytest.param("Deployment", "chat-decode", id="a pool's Deployment"),
        pytest.param("Deployment", "chat-router", id="the router's Deployment"),
        pytest.param("NetworkPolicy", "chat-workers", id="the network policy"),
    ],
)
async def test_a_deletion_that_no_event_tells_is_found_by_the_next_list(api, start, kind, name):
    world = await start()
    await converge(api, world)
    before = api.state()
    del api.items[kind, REF.namespace, name]
    for _ in range(3):
        assert isinstance(await reconcile(world, REF), Done)
    assert api.find(kind, name) is None, "nothing told of it"
    await fill_cache(world)
    assert REF in world.queue._asked, "the list itself asks for a pass"
    await converge(api, world)
    assert api.state() == before


@pytest.mark.parametrize(
    "order",
    [
        pytest.param(lambda events: events * 2, id="twice"),
        pytest.param(lambda events: events[::-1], id="backwards"),
        pytest.param(lambda events: events + events[::-1], id="twice, the oldest last"),
    ],
)
async def test_events_of_a_change_in_any_order_end_in_the_same(api, start, edit, order):
    """Given what was before and after an edit as events, when they come in disorder, then the end is a list's."""
    listed = await start()
    await converge(api, listed)
    events = told(api)
    edit(grow_and_replace)
    await converge(api, listed)
    heard = await start()
    heard.cache = Cache()
    turns = [("MODIFIED", e) for e in events] + [("DELETED", e) for e in gone(api, events)]
    turns += [("MODIFIED", e) for e in told(api)]
    for what, event in order(turns):
        tell(heard, what, event)
    before = len(api.writes)
    assert isinstance(await reconcile(heard, REF), Done)
    assert len(api.writes) == before
    assert {kind: names(heard, kind) for kind in WATCHED} == {kind: names(listed, kind) for kind in WATCHED}


def names(world, kind):
    """What is known of a kind, with its versions."""
    return sorted((i["metadata"]["name"], i["metadata"]["resourceVersion"]) for i in world.cache.all(kind))
