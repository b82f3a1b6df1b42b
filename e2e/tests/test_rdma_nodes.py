"""Nodes' RDMA cards are prepared on the real API server, in each of three ways, with the chart's rights and no others.

So are the components that do it without the operator. The SR-IOV and the network operator do not run here: their kinds
are served with the types of the fields that are written, unknown ones refused, so that what their own API servers would
not take is not taken here either.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.harness.foreign import definition, with_spec
from e2e.harness.kube import REPO, Kube
from e2e.harness.waiting import until
from e2e.harness.world import SYSTEM
from e2e.tables.installations import FILES, Role, about, rules_of

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(600)]

SRIOV, NETWORK_OPERATOR = "sriov-network-operator", "nvidia-network-operator"  # their namespaces
TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
WORDS = {"type": "object", "additionalProperties": TEXT}
FUNCTIONS = {
    "resourceName": TEXT,
    "priority": NUMBER,
    "numVfs": NUMBER,
    "mtu": NUMBER,
    "nicSelector": {
        "type": "object",
        "properties": {"vendor": TEXT, "pfNames": {"type": "array", "items": TEXT}},
    },
    "nodeSelector": WORDS,
    "deviceType": {"type": "string", "enum": ["netdevice", "vfio-pci"]},
    "isRdma": {"type": "boolean"},
    "linkType": {"type": "string", "enum": ["eth", "ETH", "ib", "IB"]},
}
PLUGIN = {"type": "object", "properties": dict.fromkeys(("repository", "image", "version", "config"), TEXT)}
PART = {"type": "object", "properties": dict.fromkeys(("repository", "image", "version"), TEXT)}
CLUSTER_POLICY = {
    "rdmaSharedDevicePlugin": PLUGIN,
    "secondaryNetwork": {"type": "object", "properties": {"cniPlugins": PART, "multus": PART}},
    "nvIpam": PART,
}
POOL_CONFIG = {
    "rdmaMode": {"type": "string", "enum": ["shared", "exclusive"]},
    "maxUnavailable": {"x-kubernetes-int-or-string": True},
    "nodeSelector": {"type": "object", "properties": {"matchLabels": WORDS}},
}
MACVLAN = {
    **dict.fromkeys(("networkNamespace", "master", "ipam"), TEXT),
    "mode": {"type": "string", "enum": ["bridge", "private", "vepa", "passthru"]},
    "mtu": {"type": "integer", "minimum": 0},
}
ADDRESSES = {"subnet": TEXT, "perNodeBlockSize": NUMBER, "gateway": TEXT}
POOLS = {"TANDEM_RDMA_NODE_POOLS": "tandem.test/nic=a,tandem.test/nic=b"}
# What is set, which of the chart's rules it needs, and what there is then: kind, namespace, names.
WAYS = [
    pytest.param(
        {},
        ["rdma-rules"],
        [("configmap", "kube-system", ["tandem-rdma-devices"]), ("daemonset", "kube-system", ["tandem-rdma-devices"])],
        id="a plugin of its own",
    ),
    pytest.param(
        {"TANDEM_RDMA_VIRTUAL_FUNCTIONS": json.dumps({"resourceName": "hca_vf", "numVfs": 4})},
        ["rdma-rules", "rdma-policy-rules"],
        [("sriovnetworknodepolicy", SRIOV, ["tandem-rdma-0", "tandem-rdma-1"])],
        id="virtual functions",
    ),
    pytest.param(
        {"TANDEM_RDMA_NETWORK_OPERATOR": "true"},
        ["rdma-rules", "rdma-node-rules"],
        [("nicnodepolicy", "", ["tandem-rdma-0", "tandem-rdma-1"])],
        id="the network operator",
    ),
]


FOREIGN = [
    definition("SriovNetworkNodePolicy", with_spec(FUNCTIONS)),
    definition("NicNodePolicy", with_spec({"nodeSelector": WORDS, "rdmaSharedDevicePlugin": PLUGIN})),
    definition("NicClusterPolicy", with_spec(CLUSTER_POLICY)),
    definition(
        "SriovNetwork", with_spec(dict.fromkeys(("resourceName", "networkNamespace", "metaPlugins", "ipam"), TEXT))
    ),
    definition("SriovNetworkPoolConfig", with_spec(POOL_CONFIG)),
    definition("MacvlanNetwork", with_spec(MACVLAN)),
    definition("IPPool", with_spec(ADDRESSES)),
]


@pytest.fixture(scope="module")
def served(kube: Kube) -> Iterator[None]:
    """Others' kinds, and their namespaces, as a prepared cluster has them."""
    kube.apply(yaml.safe_dump_all(about("v1", "Namespace", name) for name in (SRIOV, NETWORK_OPERATOR)))
    kube.apply(yaml.safe_dump_all(FOREIGN))
    try:
        for kind in FOREIGN:
            kube.run("wait", "--for=condition=Established", f"crd/{kind['metadata']['name']}", "--timeout=30s")
        yield
    finally:
        kube.run("delete", "crd", *(kind["metadata"]["name"] for kind in FOREIGN))
        kube.run("delete", "namespace", SRIOV, NETWORK_OPERATOR)


@pytest.fixture
def granted(kube: Kube, request: pytest.FixtureRequest) -> Iterator[None]:
    """The operator's account has these rules of the chart."""
    roles = [Role(name, "", rules_of(FILES / f"{name}.yaml")) for name in request.param]
    made = yaml.safe_dump_all(o for role in roles for o in role.objects("granted", "tandem-operator", SYSTEM))
    try:
        kube.apply(made)
        yield
    finally:
        kube.run("delete", "-f", "-", "--ignore-not-found", stdin=made)


def set_operator(kube: Kube, variables: dict[str, str | None]) -> None:
    """Change the operator's environment (None: without it), and wait for the new process."""
    words = [f"{name}-" if value is None else f"{name}={value}" for name, value in variables.items()]
    kube.run("set", "env", "deployment/tandem-operator", "-n", SYSTEM, *words)
    kube.run("rollout", "status", "deployment/tandem-operator", "-n", SYSTEM, "--timeout=90s", seconds=100)


def found(kube: Kube, kind: str, namespace: str) -> dict[str, str]:
    """Resource versions of the operator's objects, by name."""
    items = kube.items(kind, namespace or "default", "app.kubernetes.io/component=rdma")
    return {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in items}


@pytest.mark.parametrize(("variables", "granted", "expected"), WAYS, indirect=["granted"])
def test_cards_are_prepared_and_left_as_they_were(
    kube: Kube, served: None, granted: None, variables: dict[str, str], expected: list[tuple[str, str, list[str]]]
) -> None:
    set_operator(kube, POOLS | variables)
    try:
        for kind, namespace, names in expected:
            until(f"{kind} {names}", lambda k=kind, s=namespace, n=names: sorted(found(kube, k, s)) == n, 90)
        first = [found(kube, kind, namespace) for kind, namespace, _ in expected]
        set_operator(kube, {"TANDEM_LOG_LEVEL": "DEBUG"})  # a new process looks at what there is
        until("it has looked", lambda: "as the settings ask for" in log_of(kube), 90)
        assert [found(kube, kind, namespace) for kind, namespace, _ in expected] == first, "nothing is written twice"
        set_operator(kube, {"TANDEM_RDMA_NODE_POOLS": None, "TANDEM_RDMA_SETUP": "true"})
        for kind, namespace, _ in expected:
            until(f"no {kind}", lambda k=kind, s=namespace: not found(kube, k, s), 90)
    finally:
        back = [*POOLS, *variables, "TANDEM_LOG_LEVEL", "TANDEM_RDMA_SETUP"]
        set_operator(kube, dict.fromkeys(back))


@pytest.mark.parametrize("component", ["shared-device", "sriov", "network-operator", "by-operator"])
def test_a_component_is_taken_by_the_api_server(kube: Kube, served: None, component: str, tmp_path: Path) -> None:
    """In an overlay as a user writes it; it is a dry run, so nothing is kept."""
    manifests = os.path.relpath(REPO / "manifests", tmp_path)
    overlay = {"resources": [f"{manifests}/base"], "components": [f"{manifests}/components/rdma/{component}"]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    objects = list(yaml.safe_load_all(kube.run("kustomize", str(tmp_path))))
    taken = kube.run("apply", "-k", str(tmp_path), "--server-side", "--force-conflicts", "--dry-run=server")
    assert [line for line in taken.splitlines() if not line.endswith("serverside-applied (server dry run)")] == []
    assert len(taken.splitlines()) == len(objects)


@pytest.mark.parametrize("granted", [["rdma-rules"]], indirect=True)
def test_somebody_elses_plugin_is_told_what_to_add_and_never_written(kube: Kube, granted: None) -> None:
    """What is told is added word for word; then the operator is content, and has still written nothing."""
    theirs = {"resourceName": "ib", "resourcePrefix": "rdma"}
    set_foreign(kube, theirs)
    try:
        set_operator(kube, POOLS | {"TANDEM_RESYNC_SECONDS": "10"})
        told = until("it says what to add", lambda: entry_in(log_of(kube)), 60)
        selectors = {"vendors": ["15b3"]}
        shared = {"resourceName": "hca_shared_devices_a", "resourcePrefix": "rdma"}
        assert told == shared | {"rdmaHcaMax": 63, "selectors": selectors}
        set_foreign(kube, theirs, told)
        until("it is content", lambda: "as the settings ask for" in log_of(kube), 60)
        found_there = kube.json("get", "configmap", "rdma-devices", "-n", "kube-system", "--show-managed-fields")
        assert {entry["manager"] for entry in found_there["metadata"]["managedFields"]} == {"e2e"}
        assert [found(kube, kind, "kube-system") for kind in ("configmap", "daemonset")] == [{}, {}]
    finally:
        set_operator(kube, {**dict.fromkeys(POOLS), "TANDEM_RESYNC_SECONDS": "60"})
        kube.run("delete", "configmap", "rdma-devices", "-n", "kube-system", "--ignore-not-found")


def set_foreign(kube: Kube, *entries: dict[str, Any]) -> None:
    """The configuration of a plugin that somebody else runs, with these entries."""
    config = json.dumps({"configList": entries})
    kube.apply(
        yaml.safe_dump(about("v1", "ConfigMap", "rdma-devices", "kube-system") | {"data": {"config.json": config}})
    )


def entry_in(log: str) -> dict[str, Any] | None:
    """What the operator's log says to add; None where it says nothing of it."""
    _, told, rest = log.partition("rdma/hca_shared_devices_a: add to configList in its config.json: ")
    return json.loads(rest.splitlines()[0]) if told else None


def log_of(kube: Kube) -> str:
    """What the operator's newest process has said."""
    return kube.run("logs", "deployment/tandem-operator", "-n", SYSTEM)
