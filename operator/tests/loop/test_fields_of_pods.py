"""Each field that shapes pods: set, seen on the Deployment, silent when idle, and gone again when it is unset."""

from __future__ import annotations

import pytest

from tandem_operator.loop.reconcile import reconcile
from tandem_operator.loop.refs import Done, Ref, Stalled
from tandem_operator.loop.resync import fill_cache

REF = Ref("serving", "chat")


async def converge(api, world):
    """Passes and controllers in turn until nothing is written; then one more, which must stay silent."""
    await fill_cache(world)
    for _ in range(12):
        before = len(api.writes)
        outcome = await reconcile(world, REF)
        if len(api.writes) == before:
            assert isinstance(outcome, Done), outcome
            return
        api.settle()
        await fill_cache(world)
    raise AssertionError(f"still writing: {api.writes[-5:]}")


def pod_of(api, child):
    return api.find("Deployment", child)["spec"]["template"]


TEMPLATE = [
    ("labels", {"team": "a"}, "metadata"),
    ("annotations", {"note": "a"}, "metadata"),
    ("nodeSelector", {"disk": "fast"}, "spec"),
    ("affinity", {"nodeAffinity": {"preferred": [{"weight": 1}]}}, "spec"),
    ("topologySpreadConstraints", [{"topologyKey": "rack", "maxSkew": 1}], "spec"),
    ("priorityClassName", "high", "spec"),
    ("runtimeClassName", "nvidia", "spec"),
    ("schedulerName", "volcano", "spec"),
    ("imagePullSecrets", [{"name": "registry"}], "spec"),
    ("tolerations", [{"key": "spot", "operator": "Exists"}], "spec"),
    ("volumes", [{"name": "cache", "emptyDir": {}}], "spec"),
    ("containers", [{"name": "log", "image": "log"}], "spec"),
    ("volumeMounts", [{"name": "cache", "mountPath": "/cache"}], "container"),
    ("resources", {"limits": {"cpu": "2"}}, "container"),
    ("env", [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}], "container"),
]


def holds(found, wanted):
    """Is all of `wanted` somewhere in `found`?"""
    if isinstance(wanted, dict):
        return all(key in found and holds(found[key], value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return all(any(holds(item, one) for item in found) for one in wanted)
    return found == wanted


OWNERS = [
    pytest.param(lambda spec: spec["pools"][0], "chat-prefill", id="a pool's"),
    pytest.param(lambda spec: spec.setdefault("router", {}), "chat-router", id="the router's"),
]


@pytest.mark.parametrize(("owner", "child"), OWNERS)
@pytest.mark.parametrize(("field", "value", "where"), TEMPLATE, ids=[row[0] for row in TEMPLATE])
async def test_a_template_field_is_set_and_unset(api, start, edit, owner, child, field, value, where):
    world = await start()
    await converge(api, world)
    before = pod_of(api, child)
    edit(lambda spec: owner(spec).update(template={field: value}))
    await converge(api, world)
    pod = pod_of(api, child)
    holder = {**pod, "container": pod["spec"]["containers"][0]}[where]
    assert holds(holder[field], value)
    edit(lambda spec: owner(spec).pop("template"))
    await converge(api, world)
    assert pod_of(api, child) == before


async def test_a_refused_template_stalls_and_changes_nothing(api, start, edit):
    world = await start()
    await converge(api, world)
    before = pod_of(api, "chat-prefill")
    edit(lambda spec: spec["pools"][0].update(template={"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}))
    await fill_cache(world)
    outcome = await reconcile(world, REF)
    assert isinstance(outcome, Stalled)
    assert (outcome.reason, "HostPath" in outcome.message) == ("TemplateRefused", True)
    assert pod_of(api, "chat-prefill") == before
    edit(lambda spec: spec["pools"][0].pop("template"))
    await converge(api, world)


HARDWARE = [
    ("resourceName", "example.com/gpu", "example.com/gpu"),
    ("nodeSelector", {"card": "mine"}, "'nodeSelector': {'card': 'mine'}"),
    ("capacityType", "OnDemand", "gke-spot"),
]


@pytest.mark.parametrize(("field", "value", "words"), HARDWARE, ids=[row[0] for row in HARDWARE])
async def test_a_hardware_field_is_set_and_unset(api, start, edit, field, value, words):
    world = await start()
    await converge(api, world)
    before = pod_of(api, "chat-prefill")
    edit(lambda spec: spec["pools"][0]["hardware"].update({field: value}))
    await converge(api, world)
    assert words in str(pod_of(api, "chat-prefill"))
    assert pod_of(api, "chat-prefill") != before
    edit(lambda spec: spec["pools"][0]["hardware"].pop(field))
    await converge(api, world)
    assert pod_of(api, "chat-prefill") == before


async def test_an_accelerator_that_the_catalogue_lacks_needs_all_its_figures(api, start, edit):
    figures = ("teraflops", "memoryGibibytes", "memoryGigabytesPerSecond", "linkGigabytesPerSecond")
    edit(lambda spec: spec["pools"][0].update(hardware={"accelerator": "mine", "teraflops": 100}))
    world = await start()
    outcome = await reconcile(world, REF)
    assert isinstance(outcome, Stalled)
    assert outcome.reason == "UnknownAccelerator"
    edit(lambda spec: spec["pools"][0].update(hardware={"accelerator": "mine", **dict.fromkeys(figures, 100)}))
    await converge(api, world)
    assert "resources" not in pod_of(api, "chat-prefill")["spec"]["containers"][0]


SHARED = {"mode": "SharedDevice", "resource": "rdma/ib"}
RDMA = [
    pytest.param(SHARED, "'rdma/ib': '1'", id="shared"),
    pytest.param(SHARED | {"count": 2}, "'rdma/ib': '2'", id="count"),
    pytest.param(SHARED | {"devices": ["mlx5_0:1"]}, "mlx5_0:1", id="devices"),
    pytest.param(SHARED | {"gidIndex": 3}, "UCX_IB_GID_INDEX", id="gidIndex"),
    pytest.param(SHARED | {"networks": ["net"]}, "k8s.v1.cni.cncf.io/networks", id="networks"),
    pytest.param(
        {"mode": "HostDevice", "networks": ["net"], "attachment": "GKE"},
        "networking.gke.io/interfaces",
        id="attachment",
    ),
    pytest.param({"mode": "SRIOV", "resource": "a.b/vf"}, "'a.b/vf': '1'", id="SRIOV"),
    pytest.param({"mode": "EFA"}, "vpc.amazonaws.com/efa", id="EFA"),
    pytest.param({"mode": "DRA", "deviceClass": "nic"}, "resourceClaims", id="DRA"),
]


@pytest.mark.parametrize(("rdma", "words"), RDMA)
async def test_rdma_is_set_and_unset(api, start, edit, rdma, words):
    world = await start()
    await converge(api, world)
    before, kinds = pod_of(api, "chat-decode"), {key[0] for key in api.items}
    edit(lambda spec: spec.update(transfer={"rdma": rdma}))
    await converge(api, world)
    assert words in str(pod_of(api, "chat-decode"))
    edit(lambda spec: spec.pop("transfer"))
    await converge(api, world)
    assert pod_of(api, "chat-decode") == before
    assert {key[0] for key in api.items} == kinds, "no claim template is left"


async def test_claims_on_a_cluster_without_their_api_stall(api, start, edit):
    api.unserved.add("ResourceClaimTemplate")
    world = await start()
    edit(lambda spec: spec.update(transfer={"rdma": {"mode": "DRA", "deviceClass": "nic"}}))
    await fill_cache(world)
    outcome = await reconcile(world, REF)
    assert isinstance(outcome, Stalled)
    assert outcome.reason == "DRAMissing"
    edit(lambda spec: spec.pop("transfer"))
    await converge(api, world)
