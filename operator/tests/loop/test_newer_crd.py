"""A CRD that is newer than the operator: what it does not know of spec and status stays, and stops nothing."""

from __future__ import annotations

import copy

import pytest

from tandem_operator.loop.reconcile import reconcile

from .passes import REF, converge

KIND = "DisaggregatedInference"
FORECAST = {"type": "Forecast", "status": "True", "reason": "Rising", "message": "somebody else's"}


def unknown_spec(spec):
    """A field at each level that a newer version may have."""
    spec["forecast"] = {"days": 7}
    spec["model"]["shards"] = [1, 2]
    spec["pools"][0]["warm"] = True
    spec["pools"][0]["hardware"]["cooling"] = "liquid"
    spec["rollout"] = {"maxUnavailable": 1, "canary": {"percent": 5}}


def filled_in(status):
    """A default in the status, as an API server fills it in on each write."""
    return {**status, "fleet": {"share": 3}}


def with_a_condition(status):
    """A condition that another manager applied: an apply of ours leaves it there."""
    return {**status, "conditions": [*status["conditions"], {**status["conditions"][0], **FORECAST}]}


def inside_a_part(status):
    return {**status, "decision": {**status["decision"], "confidence": "high"}}


@pytest.fixture
def newer(api, monkeypatch):
    """An API server whose status keeps more than was applied."""

    def keep(how):
        apply = api.write_status

        async def write_status(resource, status):
            found = await apply(resource, status)
            live = api.find(KIND, "chat")
            live["status"] = how(live["status"])
            return found | {"status": copy.deepcopy(live["status"])}

        monkeypatch.setattr(api, "write_status", write_status)

    return keep


def condition(api, kind):
    found = [c for c in api.find(KIND, "chat")["status"]["conditions"] if c["type"] == kind]
    return found[0] if found else None


def children(api):
    """Uids of all that is the resource's."""
    return {key: item["metadata"]["uid"] for key, item in api.items.items() if key[0] not in {KIND, "Event"}}


async def idle(api, world):
    """Writes of three passes over what is there."""
    before = len(api.writes)
    for _ in range(3):
        await reconcile(world, REF)
    return api.writes[before:]


async def test_an_unknown_field_of_spec_stays_and_stops_nothing(api, start, edit):
    edit(unknown_spec)
    wanted = copy.deepcopy(api.find(KIND, "chat")["spec"])
    world = await start()
    await converge(api, world)
    assert condition(api, "Ready")["status"] == "True"
    assert condition(api, "Stalled") is None
    assert api.find(KIND, "chat")["spec"] == wanted
    assert await idle(api, world) == []


@pytest.mark.parametrize("kept", [filled_in, with_a_condition, inside_a_part])
async def test_what_stays_in_status_is_not_written_against(api, start, newer, kept):
    newer(kept)
    world = await start()
    await converge(api, world)
    assert condition(api, "Ready")["status"] == "True"
    assert await idle(api, world) == []
    assert len(await idle(api, await start())) <= 1, "a new process asks once"


async def test_a_status_that_somebody_else_changes_is_put_right_all_the_same(api, start, edit, newer):
    newer(filled_in)
    world = await start()
    await converge(api, world)
    wanted = copy.deepcopy(api.find(KIND, "chat")["status"])
    api.store(KIND, {**api.find(KIND, "chat"), "status": {**wanted, "ratio": "9:9"}})
    await converge(api, world)
    assert api.find(KIND, "chat")["status"] == wanted
    edit(lambda spec: spec["pools"][0]["replicas"].update(min=2))
    await converge(api, world)
    found = api.find(KIND, "chat")["status"]
    assert (found["observedGeneration"], found["fleet"]) == (2, {"share": 3})
    assert await idle(api, world) == []


@pytest.mark.parametrize(
    ("edits", "field"),
    [
        pytest.param(lambda s: s.update(mode="Forecast"), "mode", id="a mode"),
        pytest.param(lambda s: s.update(engine={"name": "other"}), "engine", id="an engine"),
        pytest.param(lambda s: s["pools"][0].update(role="Encode"), "role", id="a role"),
    ],
)
async def test_a_value_that_only_a_newer_version_knows_is_said_and_touches_no_child(api, start, edit, edits, field):
    """A field may be left out of account, a choice not: nobody knows what was meant by it."""
    world = await start()
    await converge(api, world)
    kept, before = copy.deepcopy(api.find(KIND, "chat")["spec"]), children(api)
    edit(edits)
    await converge(api, world)
    stalled = condition(api, "Stalled")
    assert (stalled["reason"], field in stalled["message"]) == ("InvalidSpec", True)
    assert children(api) == before
    edit(lambda spec: (spec.clear(), spec.update(kept)))
    await converge(api, world)
    assert condition(api, "Stalled") is None
    assert children(api) == before
