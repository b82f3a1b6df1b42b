"""Kinds of others, as an API server serves them: the same groups, versions and plurals; the content is the test's."""

from __future__ import annotations

from typing import Any

from e2e.tables.installations import about
from tandem_operator.edges.kinds import KINDS, Kind
from tandem_operator.templates import nic_policy

# Kinds of which manifests are shipped, and which the operator never touches.
SHIPPED = {
    "SriovNetwork": Kind("sriovnetwork.openshift.io", "v1", "sriovnetworks"),
    "SriovNetworkPoolConfig": Kind("sriovnetwork.openshift.io", "v1", "sriovnetworkpoolconfigs"),
    "MacvlanNetwork": Kind("mellanox.com", "v1alpha1", "macvlannetworks"),
    "IPPool": Kind("nv-ipam.nvidia.com", "v1alpha1", "ippools"),
}
OF_THE_CLUSTER = {nic_policy.KIND, nic_policy.CLUSTER_KIND, "MacvlanNetwork"}
ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def with_spec(properties: dict[str, Any]) -> dict[str, Any]:
    """A schema that knows these fields of the spec; others are refused where fields are validated strictly."""
    return {"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}}


def definition(kind: str, schema: dict[str, Any] = ANYTHING) -> dict[str, Any]:
    """Its CustomResourceDefinition."""
    place = (KINDS | SHIPPED)[kind]
    version = {"name": place.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        **about("apiextensions.k8s.io/v1", "CustomResourceDefinition", f"{place.plural}.{place.group}"),
        "spec": {
            "group": place.group,
            "scope": "Cluster" if kind in OF_THE_CLUSTER else "Namespaced",
            "names": {"kind": kind, "plural": place.plural, "singular": kind.lower()},
            "versions": [version],
        },
    }
