"""What shares nodes' RDMA cards, on the node pools that whoever runs the cluster names: never from a resource."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tandem_operator.api.constants import APP_NAME, LABEL_APP_COMPONENT, LABEL_MANAGED_BY, LABEL_NAME, MANAGED_BY
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


POLICIES: Final = 16  # virtual functions' policies, one a node pool: so many names are the operator's, and no others


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


def places(functions: Functions | None) -> list[tuple[str, str, str]]:
    """(kind, namespace, name) of all that the operator may have made; policies only where it has a right to them."""
    shared = [("ConfigMap", NAMESPACE, NAME), ("DaemonSet", NAMESPACE, NAME)]
    if functions is None:
        return shared
    return shared + [(POLICY, functions.namespace, f"tandem-rdma-{number}") for number in range(POLICIES)]


def policies(sharing: Sharing, functions: Functions) -> list[Object]:
    """A policy for each node pool: the SR-IOV operator's node selector knows no 'or'."""
    labels = {LABEL_NAME: APP_NAME, LABEL_APP_COMPONENT: COMPONENT, LABEL_MANAGED_BY: MANAGED_BY}
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
            "metadata": {"name": f"tandem-rdma-{number}", "namespace": functions.namespace, "labels": labels},
            "spec": {**spec, "nodeSelector": {key: value}},
        }
        for number, (key, value) in enumerate(sharing.pools)
    ]


def entry(sharing: Sharing) -> Object:
    """The resource's entry in a shared device plugin's configuration."""
    prefix, _, name = sharing.resource.partition("/")
    selectors = {"vendors": list(sharing.vendors)}
    return {"resourceName": name, "resourcePrefix": prefix, "rdmaHcaMax": SLOTS, "selectors": selectors}


def manifests(sharing: Sharing) -> list[Object]:
    """The configuration and the plugin; or the policies of virtual functions."""
    if not sharing.pools:
        return []
    if sharing.functions is not None:
        return policies(sharing, sharing.functions)
    labels = {LABEL_NAME: APP_NAME, LABEL_APP_COMPONENT: COMPONENT, LABEL_MANAGED_BY: MANAGED_BY}
    metadata = {"name": NAME, "namespace": NAMESPACE, "labels": labels}
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
    try:
        listed = json.loads((foreign.get("data") or {}).get(KEY, "{}")).get("configList", [])
        offered = {f"{one.get('resourcePrefix', 'rdma')}/{one.get('resourceName')}" for one in listed}
    except (ValueError, AttributeError, TypeError):
        offered = set()
    if sharing.resource in offered:
        return None
    return (
        f"ConfigMap {NAMESPACE}/{FOREIGN} is somebody else's and does not offer {sharing.resource}: "
        f"add to configList in its {KEY}: {json.dumps(entry(sharing))}"
    )
