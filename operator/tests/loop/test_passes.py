"""Whole passes against an API server in memory: convergence, crashes, drift, silence when idle."""

from __future__ import annotations

import copy

import pytest

from tandem_operator.edges.errors import ApiError
from tandem_operator.loop.reconcile import reconcile
from tandem_operator.loop.refs import Done, Failed, Ref, Stalled, Waiting
from tandem_operator.loop.resync import fill_cache

KIND = "DisaggregatedInference"
REF = Ref("serving", "chat")


async def converge(api, world, passes=12):
    """Passes and controllers in turn, until a pass writes nothing."""
    for _ in range(passes):
        before = len(api.writes)
        await reconcile(world, REF)
        quiet = len(api.writes) == before
        api.settle()
        await fill_cache(world)
        if quiet:
            return
    raise AssertionError(f"still writing after {passes} passes: {api.writes[-5:]}")


def status(api):
    return api.find(KIND, "chat")["status"]


def condition(api, kind):
    return next((c for c in status(api)["conditions"] if c["type"] == kind), None)


def aim(api, pools, prefill, decode):
    item = copy.deepcopy(api.find(KIND, "chat"))
    item["status"]["decision"]["target"] = {"pools": pools, "roles": {"prefill": prefill, "decode": decode}}
    api.store(KIND, item)


def roles(api):
    found = [p["metadata"]["labels"].get("tandem.dev/role") for p in api.of("Pod")]
    return found.count("prefill"), found.count("decode")


def replicas(api):
    return {d["metadata"]["name"]: d["spec"]["replicas"] for d in api.of("Deployment")}


async def test_a_new_resource_comes_up(api, start):
    await converge(api, await start())
    assert replicas(api) == {"chat-prefill": 1, "chat-decode": 2, "chat-router": 1}
    (key,) = api.of("Secret")
    assert key["stringData"]["key"] != ""
    found = status(api)
    assert found["decision"]["action"] in {"Initialize", "Hold"}
    assert (found["ratio"], found["roles"]) == ("1:2", {"prefill": 1, "decode": 2})
    assert condition(api, "Ready")["status"] == "True"
    assert condition(api, "Reconciling") is None
    assert condition(api, "Stalled") is None


async def test_the_intent_is_written_before_any_child(api, start):
    await reconcile(await start(), REF)
    assert api.writes[0][0] == "status"


async def test_two_idle_passes_write_nothing(api, start):
    world = await start()
    await converge(api, world)
    before = len(api.writes)
    for _ in range(3):
        assert isinstance(await reconcile(world, REF), Done)
    restarted = await start()
    await reconcile(restarted, REF)
    kinds = [write[0] for write in api.writes[before:]]
    assert kinds == [], "not even after a restart"


@pytest.mark.parametrize("lost", range(26))
async def test_a_crash_after_any_write_converges_to_the_same_end(api, start, edit, lost):
    """Come up, grow one pool and shrink the other by an edit; the process dies once, after `lost` writes."""

    async def story(crash):
        await crashing(api, start, crash)
        edit(lambda spec: spec["pools"][0]["replicas"].update(min=2))
        edit(lambda spec: spec["pools"][1]["replicas"].update(max=1, initial=1))
        await crashing(api, start, crash)
        return api.state()

    untouched = copy.deepcopy(api.items)
    expected = await story(None)
    writes = len(api.writes)
    if lost >= writes:
        pytest.skip(f"the story has {writes} writes")
    api.items, api.writes = untouched, []
    api.crash_after = lost
    assert await story(lost) == expected


async def crashing(api, start, crash):
    world = await start()
    try:
        await converge(api, world)
    except Exception as error:
        if type(error).__name__ != "CrashedError":
            raise
        api.crash_after = None
        api.settle()
        await converge(api, await start())


async def test_a_lost_status_is_adopted_from_the_children(api, start):
    await converge(api, await start())
    aim(api, {"prefill": 2, "decode": 2}, 3, 1)
    await converge(api, await start())
    assert roles(api) == (3, 1)
    item = copy.deepcopy(api.find(KIND, "chat"))
    del item["status"]
    api.store(KIND, item)
    await converge(api, await start())
    assert roles(api) == (3, 1)
    assert status(api)["decision"]["target"] == {
        "pools": {"prefill": 2, "decode": 2},
        "roles": {"prefill": 3, "decode": 1},
    }


@pytest.mark.parametrize(
    ("pools", "prefill", "decode"),
    [
        pytest.param({"prefill": 1, "decode": 2}, 2, 1, id="a flip"),
        pytest.param({"prefill": 2, "decode": 2}, 2, 2, id="grow"),
        pytest.param({"prefill": 1, "decode": 1}, 1, 1, id="shrink"),
        pytest.param({"prefill": 2, "decode": 1}, 2, 1, id="one grows, one shrinks"),
        pytest.param({"prefill": 3, "decode": 4}, 5, 2, id="grow, then flip"),
    ],
)
async def test_children_follow_the_target(api, start, pools, prefill, decode):
    world = await start()
    await converge(api, world)
    aim(api, pools, prefill, decode)
    await fill_cache(world)
    await converge(api, world)
    assert roles(api) == (prefill, decode)
    assert replicas(api) == {"chat-prefill": pools["prefill"], "chat-decode": pools["decode"], "chat-router": 1}
    assert condition(api, "Rebalancing")["status"] == "False"


async def test_growing_comes_first_and_ready_stays_true(api, start):
    world = await start()
    await converge(api, world)
    aim(api, {"prefill": 2, "decode": 1}, 2, 1)
    await fill_cache(world)
    outcome = await reconcile(world, REF)
    assert isinstance(outcome, Waiting)
    assert replicas(api)["chat-decode"] == 2, "not smaller before the other pool is ready"
    assert condition(api, "Ready")["status"] == "True"
    assert condition(api, "Rebalancing")["status"] == "True"


async def test_under_a_pinned_budget_the_shrinking_pool_gives_first(api, start, edit):
    world = await start()
    edit(lambda spec: spec.update(rebalance={"budget": {"gpus": 3}}))
    await fill_cache(world)
    await converge(api, world)
    aim(api, {"prefill": 2, "decode": 1}, 2, 1)
    await fill_cache(world)
    await reconcile(world, REF)
    assert replicas(api)["chat-decode"] + replicas(api)["chat-prefill"] <= 3
    await fill_cache(world)
    await converge(api, world)
    assert roles(api) == (2, 1)


async def test_the_worker_of_the_surplus_role_goes(api, start):
    world = await start()
    await converge(api, world)
    aim(api, {"prefill": 1, "decode": 2}, 2, 1)  # one worker of the decode pool prefills
    await fill_cache(world)
    await converge(api, world)
    aim(api, {"prefill": 1, "decode": 1}, 1, 1)
    await fill_cache(world)
    patched = len([w for w in api.writes if w[0] == "patch"])
    await converge(api, world)
    assert roles(api) == (1, 1)
    assert len([w for w in api.writes if w[0] == "patch"]) == patched + 1, "one pod was marked, none had to flip"


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda api: api.find("Deployment", "chat-decode")["spec"].update(replicas=0), id="scaled to 0"),
        pytest.param(lambda api: api.find("Deployment", "chat-decode")["spec"].update(replicas=9), id="scaled to 9"),
        pytest.param(lambda api: api.items.pop(("Service", "serving", "chat-router")), id="a Service deleted"),
        pytest.param(
            lambda api: api.find("Deployment", "chat-router")["spec"]["template"]["spec"]["containers"][0].update(
                image="x"
            ),
            id="an image replaced",
        ),
    ],
)
async def test_drift_is_repaired(api, start, spoil):
    world = await start()
    await converge(api, world)
    before = api.state()
    spoil(api)
    for item in api.of("Deployment"):
        api.store("Deployment", item)
    await fill_cache(world)
    await converge(api, world)
    assert api.state() == before


async def test_what_others_add_is_applied_over_once_and_said_once(api, start, monkeypatch, caplog):
    """A webhook puts a container into every Deployment, as a mesh does; then somebody edits one, which is drift."""
    keep = api.store

    def with_sidecar(kind, item):
        found = item["spec"]["template"]["spec"]["containers"] if kind == "Deployment" else []
        if found and found[-1]["name"] != "proxy":
            found.append({"name": "proxy"})
        return keep(kind, item)

    monkeypatch.setattr(api, "store", with_sidecar)
    world = await start()
    with caplog.at_level("WARNING"):
        await converge(api, world)
        before = len(api.writes)
        for _ in range(3):
            world.carried.clear()
            await reconcile(world, REF)
        assert len(api.writes) == before
        api.find("Deployment", "chat-decode")["spec"]["replicas"] = 0
        keep("Deployment", api.find("Deployment", "chat-decode"))
        await fill_cache(world)
        await converge(api, world)
    assert replicas(api)["chat-decode"] == 2
    said = [r.getMessage() for r in caplog.records if "has a say" in r.getMessage()]
    assert len(said) == 3, "once a Deployment"
    assert "spec.template.spec.containers" in said[0]


async def test_words_follow_the_counts_that_they_are_written_with(api, start):
    world = await start()
    await converge(api, world)
    item = copy.deepcopy(api.find(KIND, "chat"))
    item["status"]["decision"]["at"] = "2026-01-01T00:00:00Z"
    api.store(KIND, item)
    said = []
    for pod in [p for p in api.of("Pod") if p["metadata"]["labels"].get("tandem.dev/pool") == "decode"]:
        api.store("Pod", {**pod, "status": {**pod["status"], "conditions": [{"type": "Ready", "status": "False"}]}})
        await fill_cache(world)
        await reconcile(world, REF)
        said.append((status(api)["pools"]["decode"]["ready"], condition(api, "ScalingLimited")["message"][:10]))
    assert said == [(1, "decode 1/2"), (0, "decode 0/2")]


async def test_what_is_unset_is_taken_away_again(api, start, edit):
    world = await start()
    await converge(api, world)
    before = api.state()["Deployment", "chat-prefill"]
    overlay = {"nodeSelector": {"disk": "fast"}, "env": [{"name": "X", "value": "1"}]}
    edit(lambda spec: spec["pools"][0].update(template=overlay))
    await fill_cache(world)
    await converge(api, world)
    assert api.find("Deployment", "chat-prefill")["spec"]["template"]["spec"]["nodeSelector"] == {"disk": "fast"}
    edit(lambda spec: spec["pools"][0].pop("template"))
    await fill_cache(world)
    await converge(api, world)
    assert api.state()["Deployment", "chat-prefill"] == before


async def test_a_pool_that_is_taken_out_is_pruned(api, start, edit):
    world = await start()
    extra = {**api.find(KIND, "chat")["spec"]["pools"][1], "name": "more"}
    edit(lambda spec: spec["pools"].append(extra))
    await fill_cache(world)
    await converge(api, world)
    assert "chat-more" in replicas(api)
    edit(lambda spec: spec["pools"].pop())
    await fill_cache(world)
    await converge(api, world)
    assert "chat-more" not in replicas(api)
    assert api.find("Deployment", "chat-more") is None


async def test_a_foreign_object_is_never_taken(api, start):
    foreign = {"kind": "Service", "metadata": {"name": "chat-router", "namespace": "serving"}, "spec": {"mine": True}}
    api.store("Service", foreign)
    outcome = await reconcile(await start(), REF)
    assert isinstance(outcome, Stalled)
    assert outcome.reason == "NameConflict"
    assert condition(api, "Stalled")["reason"] == "NameConflict"
    assert condition(api, "Ready")["status"] == "False"
    assert api.find("Service", "chat-router")["spec"] == {"mine": True}
    del api.items["Service", "serving", "chat-router"]
    await converge(api, await start())
    assert condition(api, "Stalled") is None


async def test_a_child_of_a_former_resource_is_waited_for(api, start):
    owner = {"kind": KIND, "name": "chat", "uid": "uid-of-before"}
    old = {
        "kind": "Service",
        "metadata": {"name": "chat-router", "namespace": "serving", "ownerReferences": [owner]},
        "spec": {},
    }
    api.store("Service", old)
    assert isinstance(await reconcile(await start(), REF), Waiting)


@pytest.mark.parametrize(
    ("change", "reason", "words"),
    [
        pytest.param(lambda s: s.update(mode="Auto"), "InvalidSpec", "each role", id="mode Auto without its pools"),
        pytest.param(lambda s: s["pools"][0]["replicas"].update(min=5, max=3), "InvalidSpec", "min", id="min over max"),
        pytest.param(
            lambda s: s["pools"][0].update(hardware={"accelerator": "h9"}), "UnknownAccelerator", "h9", id="accelerator"
        ),
        pytest.param(lambda s: s.pop("slo"), "InvalidSpec", "slo", id="a field is missing"),
    ],
)
async def test_a_spec_that_is_refused_stalls_and_an_edit_heals_it(api, start, edit, change, reason, words):
    world = await start()
    await converge(api, world)
    kept, before = copy.deepcopy(api.find(KIND, "chat")["spec"]), replicas(api)
    edit(change)
    await fill_cache(world)
    await converge(api, world)
    assert condition(api, "Stalled")["reason"] == reason
    assert words in condition(api, "Stalled")["message"]
    assert replicas(api) == before, "children stay as they are"
    edit(lambda spec: (spec.clear(), spec.update(kept)))
    await fill_cache(world)
    await converge(api, world)
    assert condition(api, "Stalled") is None
    assert condition(api, "Ready")["status"] == "True"


@pytest.mark.parametrize(
    ("error", "kind", "shown"),
    [
        pytest.param(ApiError("Unreachable", "no answer"), Failed, ("Reconciling", "Retrying"), id="no answer"),
        pytest.param(ApiError("Invalid", "port 0"), Stalled, ("Stalled", "InvalidSpec"), id="invalid child"),
        pytest.param(ApiError("Forbidden", "quota"), Failed, ("Reconciling", "Retrying"), id="quota"),
    ],
)
async def test_refusals_of_the_api_server_become_outcomes(api, start, monkeypatch, error, kind, shown):
    async def refuse(manifest, *, uid):
        raise error

    monkeypatch.setattr(api, "apply", refuse)
    assert isinstance(await reconcile(await start(), REF), kind)
    assert condition(api, shown[0])["reason"] == shown[1]


SHARED = {"mode": "SharedDevice", "resource": "rdma/hca"}


@pytest.mark.parametrize(
    ("transfer", "words"),
    [
        pytest.param({"backend": "tcp"}, "travels over tcp", id="tcp"),
        pytest.param({"backend": "nixl"}, "rdma.mode is None", id="pods without a card"),
        pytest.param({"backend": "nixl", "rdma": {"mode": "EFA"}}, "does not speak EFA", id="a fabric it lacks"),
        pytest.param({"backend": "mooncake", "rdma": SHARED}, "uses TCP alone", id="an engine that was built so"),
        pytest.param({"backend": "nixl", "rdma": SHARED}, None, id="a card and a transport for it"),
    ],
)
async def test_require_rdma_never_settles_for_tcp(api, start, edit, transfer, words):
    edit(lambda spec: spec.update(transfer=transfer | {"require": "RDMA"}))
    await converge(api, await start())
    if words is None:
        assert condition(api, "KVTransferReady")["reason"] == "NoTransferYet"
        return
    assert condition(api, "KVTransferReady")["reason"] == "NotRDMA"
    assert words in condition(api, "KVTransferReady")["message"]
    assert (condition(api, "Ready")["status"], condition(api, "Ready")["reason"]) == ("False", "KVTransferNotReady")


async def test_a_resource_that_is_going_is_left_alone(api, start):
    api.find(KIND, "chat")["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert isinstance(await reconcile(await start(), REF), Done)
    assert api.writes == []


async def test_disruption_budgets_follow_the_roles(api, start):
    world = await start()
    await converge(api, world)
    kept = {b["metadata"]["name"]: b["spec"].get("minAvailable") for b in api.of("PodDisruptionBudget")}
    assert kept == {"chat-role-prefill": 0, "chat-role-decode": 1, "chat-router": None}
    aim(api, {"prefill": 1, "decode": 3}, 3, 1)
    await fill_cache(world)
    await converge(api, world)
    kept = {b["metadata"]["name"]: b["spec"].get("minAvailable") for b in api.of("PodDisruptionBudget")}
    assert kept == {"chat-role-prefill": 2, "chat-role-decode": 0, "chat-router": None}
