"""Workers as the real scheduler places them: by device, by claim, by each cloud's labels, by capacity type.

The nodes are objects alone and nobody runs what is bound to them; only the scheduler's decision is looked at.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml

from e2e.harness.kube import RESOURCE, Kube, KubectlError, condition
from e2e.harness.machines import PCIE_ROOT, Machine, machines
from e2e.harness.waiting import until
from e2e.harness.world import NAMESPACE, SYSTEM, sample, wait_condition
from tandem_operator.api.catalogue import CATALOGUE, Accelerator, to_data
from tandem_operator.api.node_labels import PRODUCT_LABEL, SPOT

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(600)]

NAME = "placed"
WORKERS = f"tandem.dev/resource={NAME},tandem.dev/component=worker"
H100 = {PRODUCT_LABEL: "NVIDIA-H100-80GB-HBM3"}
GPUS = {"nvidia.com/gpu": "8"}
PLACED_S = 90.0
Object = dict[str, Any]

# what the resource asks for; the node that has it; one that lacks a part of it
ROWS = [
    pytest.param(
        {"mode": "SRIOV", "resource": "nvidia.com/mlnx_rdma_vf", "count": 1},
        {**GPUS, "nvidia.com/mlnx_rdma_vf": "8"},
        {**GPUS, "nvidia.com/mlnx_rdma_vf": "0"},
        id="SRIOV",
    ),
    pytest.param(
        {"mode": "HostDevice", "resource": "nvidia.com/hostdev", "count": 2},
        {**GPUS, "nvidia.com/hostdev": "4"},
        {**GPUS, "nvidia.com/hostdev": "1"},
        id="HostDevice",
    ),
    pytest.param(
        {"mode": "EFA", "count": 4},
        {**GPUS, "vpc.amazonaws.com/efa": "32", "hugepages-2Mi": "20Gi"},
        {**GPUS, "vpc.amazonaws.com/efa": "32"},
        id="EFA",
    ),
]


def body(prefill: int = 1, hardware: Object | None = None, **rdma: Any) -> Object:
    """Two pools of H100."""
    found = sample(NAME, rebalance={"mode": "Off"}, transfer={"backend": "tcp", "require": "Any", "rdma": rdma})
    for pool, count in zip(found["spec"]["pools"], (prefill, 1), strict=True):
        pool |= {"hardware": {"accelerator": "h100-sxm", **(hardware or {})}, "replicas": {"min": count, "max": count}}
        pool["template"]["tolerations"] = [{"operator": "Exists"}]  # no kubelet says that these nodes are alive
    return found


@contextlib.contextmanager
def applied(kube: Kube, wanted: Object) -> Iterator[None]:
    """The resource is there while the body runs; no kubelet ends its pods."""
    kube.apply(yaml.safe_dump(wanted))
    try:
        yield
    finally:
        kube.run("delete", RESOURCE, NAME, "-n", NAMESPACE, "--wait=true")
        until("no Deployment is left", lambda: not kube.items("deployments", NAMESPACE, WORKERS), 60)
        until("no pod is left", lambda: ended(kube), 60)


def ended(kube: Kube) -> bool:
    """Have its pods ended, with a hand where nobody else does it?"""
    kube.run("delete", "pod", "-n", NAMESPACE, "-l", f"tandem.dev/resource={NAME}", "--force", "--grace-period=0")
    return not kube.items("pods", NAMESPACE, f"tandem.dev/resource={NAME}")


def placed(kube: Kube, count: int) -> list[str]:
    """Nodes of the workers, once all are bound."""
    found = [pod["spec"].get("nodeName") for pod in kube.items("pods", NAMESPACE, WORKERS)]
    return sorted(found) if len(found) == count and all(found) else []


@pytest.mark.parametrize(("rdma", "enough", "too_little"), ROWS)
def test_workers_go_where_their_devices_are(
    kube: Kube, smollm2: dict, rdma: Object, enough: dict[str, str], too_little: dict[str, str]
) -> None:
    with machines(kube, Machine("has", H100, enough), Machine("lacks", H100, too_little)), applied(kube, body(**rdma)):
        assert until("both workers have a node", lambda: placed(kube, 2), PLACED_S) == ["has", "has"]


def test_a_claim_is_met_where_accelerator_and_card_share_a_pcie_root(kube: Kube, smollm2: dict) -> None:
    apart = Machine("apart", H100, devices={"gpu.nvidia.com": ["pci0", "pci1"], "dranet": ["pci2", "pci3"]})
    beside = Machine("beside", H100, devices={"gpu.nvidia.com": ["pci0", "pci1"], "dranet": ["pci1", "pci0", "pci2"]})
    with machines(kube, apart, beside), applied(kube, body(mode="DRA", deviceClass="dranet")):
        assert until("both workers have a node", lambda: placed(kube, 2), PLACED_S) == ["beside", "beside"]
        roots = {one["metadata"]["name"]: roots_of(one, beside) for one in kube.items("resourceclaims", NAMESPACE)}
        assert sorted(map(sorted, roots.values())) == [["pci0", "pci0"], ["pci1", "pci1"]]


def roots_of(claim: Object, machine: Machine) -> list[str]:
    """PCIe roots of what a claim was given."""
    slices = {one["spec"]["driver"]: one["spec"]["devices"] for one in machine.slices()}
    found = claim["status"]["allocation"]["devices"]["results"]
    devices = {(driver, one["name"]): one for driver, listed in slices.items() for one in listed}
    return [devices[one["driver"], one["device"]]["attributes"][PCIE_ROOT]["string"] for one in found]


def test_where_they_are_only_apart_the_scheduler_is_quoted(kube: Kube, smollm2: dict) -> None:
    apart = Machine("apart", H100, devices={"gpu.nvidia.com": ["pci0"], "dranet": ["pci1"]})
    with machines(kube, apart), applied(kube, body(mode="DRA", deviceClass="dranet")):
        seen = wait_condition(kube, NAME, "ScalingLimited", "True", "Unschedulable", seconds=PLACED_S)
        assert "cannot allocate all claims" in seen["message"]


def told_by_autoscaler(pod: Object, note: str) -> Object:
    """Its event on a pod for which it can make no node."""
    metadata = pod["metadata"]
    about = {"kind": "Pod", "name": metadata["name"], "namespace": NAMESPACE, "uid": metadata["uid"]}
    moment = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.told", "namespace": NAMESPACE},
        "type": "Normal",
        "reason": "NotTriggerScaleUp",
        "action": "ScaleUp",
        "note": note,
        "regarding": about,
        "eventTime": moment,
        "reportingController": "cluster-autoscaler",
        "reportingInstance": "one",
    }


def test_a_pool_that_no_autoscaler_can_grow_says_so_in_its_words(kube: Kube, smollm2: dict) -> None:
    note = "pod didn't trigger scale-up: 1 max node group size reached"
    with applied(kube, body(mode="HostDevice", resource="nvidia.com/hostdev", count=1)):
        wait_condition(kube, NAME, "ScalingLimited", "True", "Unschedulable", seconds=PLACED_S)
        for pod in kube.items("pods", NAMESPACE, WORKERS):
            kube.run("create", "-f", "-", stdin=yaml.safe_dump(told_by_autoscaler(pod, note)))
        until("it is quoted", lambda: note in condition(placed_one(kube), "ScalingLimited")["message"], PLACED_S)


def placed_one(kube: Kube) -> Object | None:
    return kube.find(RESOURCE, NAME, NAMESPACE)


def forms() -> list[dict[str, str]]:
    """Each way in which the catalogue knows a node with this card to be labelled."""
    entry = CATALOGUE["h100-sxm"]
    known = {PRODUCT_LABEL: entry.products, **entry.labels}
    return [{key: value} for key, values in known.items() for value in values]


def test_a_node_is_found_by_any_of_the_labels_that_clouds_give_it(kube: Kube, smollm2: dict) -> None:
    one = {"nvidia.com/gpu": "1", "nvidia.com/hostdev": "1"}
    known = [Machine(f"form-{number:02}", labels, one) for number, labels in enumerate(forms())]
    stranger = Machine("stranger", {PRODUCT_LABEL: "NVIDIA-L4"}, one)
    wanted = body(prefill=len(known) - 1, mode="HostDevice", resource="nvidia.com/hostdev", count=1)
    with machines(kube, *known, stranger), applied(kube, wanted):
        found = until("each worker has a node", lambda: placed(kube, len(known)), PLACED_S)
        assert found == [machine.name for machine in known]


@pytest.mark.parametrize(("kind", "node"), [("Spot", "spot"), ("OnDemand", "demand")])
def test_capacity_that_may_be_taken_away_is_wanted_or_not(kube: Kube, smollm2: dict, kind: str, node: str) -> None:
    room = {**GPUS, "nvidia.com/hostdev": "8"}
    key, value = next(iter(SPOT.items()))
    wanted = body(hardware={"capacityType": kind}, mode="HostDevice", resource="nvidia.com/hostdev", count=1)
    nodes = Machine("spot", {**H100, key: value}, room), Machine("demand", H100, room)
    with machines(kube, *nodes), applied(kube, wanted):
        assert until("both workers have a node", lambda: placed(kube, 2), PLACED_S) == [node, node]
        assert condition(placed_one(kube), "ScalingLimited")["reason"] != "Unschedulable"


def test_a_card_of_this_clusters_own_catalogue_is_known_without_a_restart(kube: Kube, smollm2: dict) -> None:
    model = {"example.com/model": ("lab-card",)}
    card = replace(CATALOGUE["h100-sxm"], name="lab-card", resource="example.com/card", products=(), labels=model)
    lab = Machine("lab", {"example.com/model": "lab-card"}, {"example.com/card": "2"})
    wanted = body(hardware={"accelerator": "lab-card"}, mode="None")
    with machines(kube, lab), in_catalogue(kube, card):
        until("the admission policy knows it", lambda: is_taken(kube, wanted), 60)
        with applied(kube, wanted):  # by the kubelet's next look at the volume, and the operator's next at the folder
            assert until("both workers have a node", lambda: placed(kube, 2), 300, every=1) == ["lab", "lab"]


@contextlib.contextmanager
def in_catalogue(kube: Kube, card: Accelerator) -> Iterator[None]:
    """The cluster's ConfigMap has this entry, too, while the body runs."""
    kube.patch("configmap", "tandem-catalogue", SYSTEM, {"data": to_data({card.name: card})})
    try:
        yield
    finally:
        kube.patch("configmap", "tandem-catalogue", SYSTEM, {"data": {card.name: None}})


def is_taken(kube: Kube, wanted: Object) -> bool:
    """Does the API server take it?"""
    try:
        kube.apply(yaml.safe_dump(wanted), "--dry-run=server")
    except KubectlError as error:
        if "not in the catalogue" not in str(error):
            raise
        return False
    return True
