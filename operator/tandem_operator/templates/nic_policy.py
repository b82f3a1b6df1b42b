"""Shared RDMA cards by the NVIDIA network operator: its node policies, and what its one cluster policy already does.

It heeds a NicClusterPolicy of one fixed name, the whole cluster's: that is read, never written. A NicNodePolicy may
have any name, of at most 30 characters, and is for the nodes of a selector; the network operator's webhook refuses one
whose section the cluster policy has too, and two for one node.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Object = dict[str, Any]
KIND: Final = "NicNodePolicy"
CLUSTER_KIND: Final = "NicClusterPolicy"
CLUSTER_NAME: Final = "nic-cluster-policy"
API: Final = "mellanox.com/v1alpha1"
SECTION: Final = "rdmaSharedDevicePlugin"
CONFIG: Final = "configList"


def node_policies(
    names: Sequence[str], pools: Sequence[tuple[str, str]], entry: Object, image: str, labels: Mapping[str, str]
) -> list[Object]:
    """A policy for each node pool: its selector knows no 'or'."""
    return [
        {
            "apiVersion": API,
            "kind": KIND,
            "metadata": {"name": name, "namespace": "", "labels": dict(labels)},  # '': of the whole cluster
            "spec": {"nodeSelector": {key: value}, SECTION: section([entry], image)},
        }
        for name, (key, value) in zip(names, pools, strict=False)
    ]


def section(entries: Sequence[Object], image: str) -> Object:
    """The plugin's part of a policy, with its configuration as text."""
    path, _, version = image.rpartition(":")
    repository, _, name = path.rpartition("/")
    config = json.dumps({"periodicUpdateInterval": 300, CONFIG: list(entries)})
    return {"repository": repository, "image": name, "version": version, "config": config}


def shares_already(cluster: Object | None) -> bool:
    """Does the cluster policy run the plugin? Then a node policy of ours would be refused."""
    return SECTION in ((cluster or {}).get("spec") or {})


def patch_of(cluster: Object | None, entry: Object, image: str) -> str | None:
    """What to run so that the cluster policy offers the resource; None where it does. Its other entries stay."""
    own = ((cluster or {}).get("spec") or {}).get(SECTION)
    listed = entries_of(own)
    if listed is None:
        text = json.dumps(entry)
        return f"the {SECTION}.config of {CLUSTER_KIND} {CLUSTER_NAME} cannot be read: add to its {CONFIG}: {text}"
    if name_of(entry) in {name_of(one) for one in listed}:
        return None
    wanted = section([*listed, entry], image)
    change = {"spec": {SECTION: {"config": wanted["config"]} if own else wanted}}
    words = json.dumps(change).replace("'", "'\\''")
    return f"kubectl patch nicclusterpolicy {CLUSTER_NAME} --type=merge -p '{words}'"


def entries_of(own: Object | None) -> list[Object] | None:
    """The resources of a plugin's section; None where its configuration cannot be read."""
    try:
        listed = json.loads((own or {}).get("config") or "{}").get(CONFIG, [])
    except (ValueError, AttributeError, TypeError):
        return None
    readable = isinstance(listed, list) and all(isinstance(one, dict) for one in listed)
    return listed if readable else None


def name_of(entry: Mapping[str, Any]) -> str:
    """The resource that an entry offers."""
    return f"{entry.get('resourcePrefix', 'rdma')}/{entry.get('resourceName')}"
