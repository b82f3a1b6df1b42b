"""Sharing of nodes' RDMA cards: opt-in, silent when idle, and never a write to what is somebody else's."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from e2e.harness.kube import KubectlError
from tandem_operator.loop.nodes import prepare_once
from tandem_operator.loop.settings import SettingsError, from_environment
from tandem_operator.templates.rdma_nodes import FOREIGN, NAME, NAMESPACE, advice, entry, manifests, places

REPO = Path(__file__).resolve().parents[3]
SHARING = from_environment({"TANDEM_RDMA_NODE_POOLS": "pool=a,example.com/pool=b"}).rdma_sharing
HCA = "rdma/hca_shared_devices_a"


def foreign(*names, key="config.json"):
    config = {"configList": [{"resourceName": name, "resourcePrefix": "rdma"} for name in names]}
    return {
        "kind": "ConfigMap",
        "metadata": {"name": FOREIGN, "namespace": NAMESPACE},
        "data": {key: json.dumps(config)},
    }


def written(api):
    return [write[1:] for write in api.writes]


BOTH = [("ConfigMap", NAMESPACE, NAME), ("DaemonSet", NAMESPACE, NAME)]


def test_nobody_asks_for_it():
    assert from_environment({}).rdma_sharing is None


@pytest.mark.parametrize("manifest", manifests(SHARING), ids=lambda m: m["kind"])
def test_valid_and_of_its_own_name(manifest):
    kubernetes_validate.validate(manifest, "1.37", strict=True)
    assert manifest["metadata"]["name"] == NAME


def test_the_plugin_is_the_components_but_for_its_nodes():
    component = yaml.safe_load((REPO / "manifests/components/rdma/shared-device/daemonset.yaml").read_text())
    (_, plugin) = manifests(SHARING)
    own, shipped = (found["spec"]["template"]["spec"] for found in (plugin, component))
    assert own["containers"] == shipped["containers"]
    terms = own["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [(t["matchExpressions"][0]["key"], t["matchExpressions"][0]["values"]) for t in terms] == [
        ("pool", ["a"]),
        ("example.com/pool", ["b"]),
    ]


async def test_written_once_changed_when_asked_and_mended(api, start):
    world = await start()
    assert await prepare_once(world, SHARING) is None
    assert written(api) == BOTH
    await prepare_once(world, SHARING)
    assert written(api) == BOTH, "idle: nothing is written"
    other = replace(SHARING, vendors=("8086",))
    await prepare_once(world, other)
    assert written(api) == BOTH * 2, "the plugin reads its configuration once: it begins anew"
    live = copy.deepcopy(api.items["DaemonSet", NAMESPACE, NAME])
    live["spec"]["template"]["spec"]["containers"][0]["image"] = "other"
    api.store("DaemonSet", live)
    await prepare_once(world, other)
    assert written(api) == [*BOTH, *BOTH, BOTH[1]]


@pytest.mark.parametrize(
    ("config", "told"),
    [
        pytest.param(foreign("hca_shared_devices_a"), False, id="it offers the resource"),
        pytest.param(foreign("ib"), True, id="it offers another"),
        pytest.param(foreign(), True, id="it offers none"),
        pytest.param(foreign("hca_shared_devices_a", key="other"), True, id="another key"),
        pytest.param({"metadata": {}, "data": {"config.json": "{"}}, True, id="no JSON"),
        pytest.param({"metadata": {}, "data": {"config.json": "[1]"}}, True, id="no object"),
        pytest.param({"metadata": {}}, True, id="empty"),
    ],
)
def test_advice_has_the_exact_entry(config, told):
    said = advice(config, SHARING)
    assert (said is not None) is told
    if said is not None:
        assert json.loads(said[said.index("{") :]) == entry(SHARING)


async def test_beside_a_foreign_plugin_nothing_is_written(api, start):
    api.store("ConfigMap", foreign("ib"))
    assert HCA in await prepare_once(await start(), SHARING)
    assert written(api) == []


async def test_a_foreign_object_of_our_name_is_left_alone(api, start):
    theirs = {"kind": "ConfigMap", "metadata": {"name": NAME, "namespace": NAMESPACE}, "data": {}}
    api.store("ConfigMap", theirs)
    assert "somebody else's" in await prepare_once(await start(), SHARING)
    assert written(api) == []


async def test_what_nobody_asks_for_any_more_is_taken_away(api, start):
    world = await start()
    await prepare_once(world, SHARING)
    api.writes.clear()
    none = from_environment({"TANDEM_RDMA_SETUP": "true"}).rdma_sharing
    assert await prepare_once(world, none) is None
    assert {(w[0], *w[1:]) for w in api.writes} == {("delete", *place) for place in BOTH}
    api.writes.clear()
    assert await prepare_once(world, none) is None
    assert api.writes == []
    theirs = {"kind": "ConfigMap", "metadata": {"name": NAME, "namespace": NAMESPACE}, "data": {}}
    api.store("ConfigMap", theirs)
    await prepare_once(world, none)
    assert api.writes == [], "somebody else's of that name"


FUNCTIONS = {"resourceName": "hca_vf", "pfNames": ["ens1f0np0"], "numVfs": 4, "linkType": "ib", "mtu": 4096}


def by_functions(pools, **fields):
    words = json.dumps(FUNCTIONS | fields)
    named = {"TANDEM_RDMA_SETUP": "true", "TANDEM_RDMA_NODE_POOLS": pools, "TANDEM_RDMA_VIRTUAL_FUNCTIONS": words}
    return from_environment(named).rdma_sharing


def policies_in(api):
    return {n: item for (kind, _, n), item in api.items.items() if kind == "SriovNetworkNodePolicy"}


async def test_virtual_functions_are_policies_of_the_sriov_operator(api, start):
    world = await start()
    two = by_functions("pool=a,example.com/pool=b")
    assert await prepare_once(world, two) is None
    found = policies_in(api)
    assert [item["spec"]["nodeSelector"] for item in found.values()] == [{"pool": "a"}, {"example.com/pool": "b"}]
    nics = {"vendor": "15b3", "pfNames": ["ens1f0np0"]}
    wanted = {"resourceName": "hca_vf", "numVfs": 4, "mtu": 4096, "linkType": "ib", "isRdma": True, "nicSelector": nics}
    assert all(item["spec"].items() >= wanted.items() for item in found.values())
    before = len(api.writes)
    await prepare_once(world, two)
    assert len(api.writes) == before, "idle: a policy that is written again reboots nodes"
    await prepare_once(world, by_functions("example.com/pool=b"))
    assert [item["spec"]["nodeSelector"] for item in policies_in(api).values()] == [{"example.com/pool": "b"}]
    await prepare_once(world, by_functions(""))
    assert policies_in(api) == {}


async def test_a_foreign_policy_of_our_name_is_left_alone(api, start):
    about = {"name": "tandem-rdma-0", "namespace": "sriov-network-operator"}
    api.store("SriovNetworkNodePolicy", {"kind": "SriovNetworkNodePolicy", "metadata": about, "spec": {}})
    world = await start()
    assert "somebody else's" in await prepare_once(world, by_functions("pool=a"))
    await prepare_once(world, by_functions(""))
    assert policies_in(api)["tandem-rdma-0"]["spec"] == {}
    assert api.writes == []


@pytest.mark.parametrize("words", ["{", '{"resourceName": "a-b"}', '{"resourceName": "a", "more": 1}'])
def test_virtual_functions_that_cannot_be_read_are_a_wrong_setting(words):
    with pytest.raises(SettingsError, match="RDMA_VIRTUAL_FUNCTIONS"):
        from_environment({"TANDEM_RDMA_VIRTUAL_FUNCTIONS": words})


def test_the_charts_rights_to_policies_are_for_these_names():
    rules = yaml.safe_load((REPO / "charts/tandem/files/rdma-policy-rules.yaml").read_text())
    named = {name for rule in rules for name in rule.get("resourceNames", [])}
    assert named == {name for kind, _, name in places(by_functions("a=b")) if kind != "ConfigMap"} - {NAME}
    assert all("resourceNames" in rule for rule in rules)


@pytest.mark.cluster
def test_the_charts_rights_are_enough_and_no_more(kube):
    rules = yaml.safe_load((REPO / "charts/tandem/files/rdma-rules.yaml").read_text())
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "test-rdma", "namespace": NAMESPACE}}
    user = "system:serviceaccount:default:test-rdma"
    kube.apply(yaml.safe_dump(rbac | {"kind": "Role", "rules": rules}))
    binding = {
        "kind": "RoleBinding",
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "test-rdma"},
        "subjects": [{"kind": "ServiceAccount", "name": "test-rdma", "namespace": "default"}],
    }
    kube.apply(yaml.safe_dump(rbac | binding))
    try:
        for manifest in manifests(SHARING):
            kube.apply(yaml.safe_dump(manifest), "--dry-run=server", f"--as={user}")
            renamed = copy.deepcopy(manifest)
            renamed["metadata"]["name"] = "somebody-elses"
            with pytest.raises(KubectlError, match="orbidden"):
                kube.apply(yaml.safe_dump(renamed), "--dry-run=server", f"--as={user}")
    finally:
        kube.run("delete", "role,rolebinding", "test-rdma", "-n", NAMESPACE)


def test_the_charts_rights_are_for_these_names():
    rules = yaml.safe_load((REPO / "charts/tandem/files/rdma-rules.yaml").read_text())
    named = {name for rule in rules for name in rule.get("resourceNames", [])}
    assert named == {NAME, FOREIGN}
    assert all("resourceNames" in rule for rule in rules)
