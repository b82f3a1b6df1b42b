"""Where pods go: what nodes must be, what is preferred among them, and what autoscalers are told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tandem_operator.api.node_labels import PRODUCT_LABEL, SPOT
from tandem_operator.templates.names import router_selector, worker_selector

if TYPE_CHECKING:
    from tandem_operator.api.catalogue import Accelerator
    from tandem_operator.api.spec_pool import Hardware

Object = dict[str, Any]
# A worker carries streams as long as it serves, and the operator alone knows when it does not: it makes the pool
# smaller, and the node becomes empty. So the pods say it for good, rather than by a write for each change of load,
# which would come too late for a stream that begins in between. Drains go on: they ask the disruption budgets.
KEPT: Final = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
KUEUE: Final = "kueue.x-k8s.io/"
# From close to far: an NVLink domain, a rack or switch of each cloud, a zone. A node without the label scores nothing.
NEAR: Final = (
    ("nvidia.com/gpu.clique", 100),
    ("cloud.google.com/gce-topology-subblock", 60),
    ("topology.k8s.aws/network-node-layer-3", 60),
    ("backend.coreweave.cloud/leafgroup", 60),
    ("oci.oraclecloud.com/rdma.local_block_id", 60),
    ("topology.kubernetes.io/zone", 20),
)


def node_terms(accelerator: Accelerator, hardware: Hardware) -> list[Object]:
    """The node terms, any of which is enough: a node may be labelled in any of the forms that the catalogue knows.

    A nodeSelector in the resource stands for all of them. Empty: any node.
    """
    labels = dict(accelerator.labels)
    if accelerator.products:
        labels = {PRODUCT_LABEL: accelerator.products, **labels}
    if hardware.node_selector:
        labels = {}
    wanted = [_in(key, list(values)) for key, values in labels.items()]
    expressions = _capacity(hardware.capacity_type)
    # Spot is said in one of four ways, so each way of saying the product meets each way of saying spot.
    terms = [[one, *more] for one in wanted for more in expressions] if wanted else expressions
    return [{"matchExpressions": term} for term in terms if term]


def _capacity(kind: str) -> list[list[Object]]:
    if kind == "Spot":
        return [[_in(key, [value])] for key, value in SPOT.items()]
    if kind == "OnDemand":
        return [[{"key": key, "operator": "NotIn", "values": [value]} for key, value in SPOT.items()]]
    return [[]]


def _in(key: str, values: list[str]) -> Object:
    return {"key": key, "operator": "In", "values": values}


def tolerations(accelerator: Accelerator, hardware: Hardware) -> list[Object]:
    """The taints that come with the accelerator, and with nodes that a cloud may take away."""
    keys = [accelerator.resource] if accelerator.resource else []
    keys += list(SPOT) if hardware.capacity_type == "Spot" else []
    return [{"key": key, "operator": "Exists"} for key in keys]


def queued(made: Object) -> Object:
    """The Deployment with its pods' labels for Kueue on itself as well: there Kueue reads the queue."""
    labels = made["spec"]["template"]["metadata"]["labels"].items()
    asked = {key: value for key, value in labels if key.startswith(KUEUE)}
    metadata = made["metadata"]
    return {**made, "metadata": {**metadata, "labels": {**metadata["labels"], **asked}}} if asked else made


def worker_defaults(resource: str) -> Object:
    """What holds for workers unless a template says otherwise: kept by autoscalers, near the resource's others."""
    near = [
        {
            "weight": weight,
            "podAffinityTerm": {"topologyKey": key, "labelSelector": {"matchLabels": worker_selector(resource)}},
        }
        for key, weight in NEAR
    ]
    return {
        "metadata": {"annotations": dict(KEPT)},
        "spec": {"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": near}}},
    }


def router_defaults(resource: str) -> Object:
    """What holds for routers unless a template says otherwise: not all on one node or in one zone."""
    selector = {"matchLabels": router_selector(resource)}
    spread = [
        {"topologyKey": key, "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector}
        for key in ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
    ]
    return {"spec": {"topologySpreadConstraints": spread}}
