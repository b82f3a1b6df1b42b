"""What shares nodes' RDMA cards, on the node pools that whoever runs the cluster names: never from a resource."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tandem_operator.api.constants import APP_NAME, LABEL_APP_COMPONENT, LABEL_MANAGED_BY, LABEL_NAME, MANAGED_BY
from tandem_operator.templates import nic_policy
from tandem_operator.templates.names import digest_of
from tandem_operator.templates.render import render

if TYPE_CHECKING:
    from collections.abc import Mapping

Object = dict[str, Any]
NAMESPACE: Final = "kube-system"
NAME: Final = "tandem-rdma-devices"  # of both objects; no other is ever written
FOREIGN: Final = "rdma-devices"  # the configuration of a plugin that somebody else runs
KEY: Final = "config.json"
COMPONENT: Final = "rdma"
POLICY: Final = "SriovNetworkNodePolicy"
SLOTS: Final = 63  # pods of a node that may share a card


POLICIES: Final = 16  # policies of virtual functions, or of node pools: so many names are the operator's, and no others
NAMES: Final = tuple(f"tandem-rdma-{number}" for number in range(POLICIES))
LABELS: Final = {LABEL_NAME: APP_NAME, LABEL_APP_COMPONENT: COMPONENT, LABEL_MANAGED_BY: MANAGED_BY}


@dataclass(frozen=True, slots=True)
class Functions:
    """Virtual functions that the SR-IOV network operator is to make of the cards of those nodes."""

    resource: str  # after the device plugin's prefix: hca_vf
    namespace: str  # the SR-IOV network operator's
    vendor: str
    pf_names: tuple[str, ...]
    count: int  # of each card
    link: str  # eth, ib
    mtu: int


@dataclass(frozen=True, slots=True)
class Sharing:
    """Which nodes' cards are shared, and under which name: the cluster operator's settings."""

    pools: tuple[tuple[str, str], ...]  # labels, any of which makes a node one of these
    resource: str  # rdma/hca_shared_devices_a
    vendors: tuple[str, ...]
    image: str
    functions: Functions | None = None  # in place of shared cards
    network_operator: bool = False  # it runs the plugin, by policies of ours, in place of our own DaemonSet


def places(sharing: Sharing) -> list[tuple[str, str, str]]:
    """(kind, namespace, name) of all that the operator may have made; policies only where it has a right to them."""
    found = [("ConfigMap", NAMESPACE, NAME), ("DaemonSet", NAMESPACE, NAME)]
    if sharing.functions is not None:
        found += [(POLICY, sharing.functions.namespace, name) for name in NAMES]
    if sharing.network_operator:
        found += [(nic_policy.KIND, "", name) for name in NAMES]
    return found


def policies(sharing: Sharing, functions: Functions) -> list[Object]:
    """A policy for each node pool: the SR-IOV operator's node selector knows no 'or'."""
    nics = {"vendor": functions.vendor} | ({"pfNames": list(functions.pf_names)} if functions.pf_names else {})
    spec = {
        "resourceName": functions.resource,
        "priority": 90,
        "numVfs": functions.count,
        "mtu": functions.mtu,
        "nicSelector": nics,
        "deviceType": "netdevice",
        "isRdma": True,
        "linkType": functions.link,
    }
    return [
        {
            "apiVersion": "sriovnetwork.openshift.io/v1",
            "kind": POLICY,
            "metadata": {"name": name, "namespace": functions.namespace, "labels": LABELS},
            "spec": {**spec, "nodeSelector": {key: value}},
        }
        for name, (key, value) in zip(NAMES, sharing.pools, strict=False)
    ]


def entry(sharing: Sharing) -> Object:
    """The resource's entry in a shared device plugin's configuration."""
    prefix, _, name = sharing.resource.partition("/")
    selectors = {"vendors": list(sharing.vendors)}
    return {"resourceName": name, "resourcePrefix": prefix, "rdmaHcaMax": SLOTS, "selectors": selectors}


def manifests(sharing: Sharing) -> list[Object]:
    """The configuration and the plugin; or the policies of virtual functions, or of the network operator."""
    if not sharing.pools:
        return []
    if sharing.functions is not None:
        return policies(sharing, sharing.functions)
    if sharing.network_operator:
        return nic_policy.node_policies(NAMES, sharing.pools, entry(sharing), sharing.image, LABELS)
    metadata = {"name": NAME, "namespace": NAMESPACE, "labels": LABELS}
    config = json.dumps({"periodicUpdateInterval": 300, "configList": [entry(sharing)]}, indent=1)
    plugin = render(
        "rdma_plugin",
        metadata=metadata,
        selector={LABEL_NAME: NAME},
        digest=digest_of(config)[:16],
        node_terms=[
            {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]} for key, value in sharing.pools
        ],
        image=sharing.image,
    )
    return [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {KEY: config}}, plugin]


def advice(foreign: Mapping[str, Any], sharing: Sharing) -> str | None:
    """What to add to somebody else's configuration; None where it offers the resource already."""
    listed = nic_policy.entries_of({"config": (foreign.get("data") or {}).get(KEY)}) or []
    if sharing.resource in {nic_policy.name_of(one) for one in listed}:
        return None
    return (
        f"ConfigMap {NAMESPACE}/{FOREIGN} is somebody else's and does not offer {sharing.resource}: "
        f"add to configList in its {KEY}: {json.dumps(entry(sharing))}"
    )
