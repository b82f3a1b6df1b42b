"""Nodes' RDMA cards are prepared on the real API server, in each of three ways, with the chart's rights and no others.

The SR-IOV and the network operator do not run here: their kinds are served with the types of the fields that are
written, unknown ones refused, so that what their own API servers would not take is not taken here either.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import yaml

from e2e.harness.foreign import definition, with_spec
from e2e.harness.kube import Kube
from e2e.harness.waiting import until
from e2e.harness.world import SYSTEM
from e2e.tables.installations import FILES, Role, rules_of

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(600)]

SRIOV = "sriov-network-operator"
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
    definition("NicClusterPolicy", with_spec({"rdmaSharedDevicePlugin": PLUGIN})),
]


@pytest.fixture(scope="module")
def served(kube: Kube) -> Iterator[None]:
    """Others' kinds, and a namespace, as a prepared cluster has them."""
    kube.run("create", "namespace", SRIOV)
    kube.apply(yaml.safe_dump_all(FOREIGN))
    try:
        for kind in FOREIGN:
            kube.run("wait", "--for=condition=Established", f"crd/{kind['metadata']['name']}", "--timeout=30s")
        yield
    finally:
        kube.run("delete", "crd", *(kind["metadata"]["name"] for kind in FOREIGN))
        kube.run("delete", "namespace", SRIOV)


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


def log_of(kube: Kube) -> str:
    """What the operator's newest process has said."""
    return kube.run("logs", "deployment/tandem-operator", "-n", SYSTEM)
