"""The kinds of objects that the operator reads and writes: each has a path, nothing is discovered at run time."""

from __future__ import annotations

from dataclasses import dataclass

from tandem_operator.api.constants import GROUP, KIND, PLURAL, VERSION


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind's place in the API."""

    group: str  # '' for the core group
    version: str
    plural: str

    @property
    def api_version(self) -> str:
        """`apps/v1`, or `v1` for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None, name: str | None = None) -> str:
        """The URL path of one object, or of a list; namespace None = over all namespaces."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        within = f"/namespaces/{namespace}" if namespace else ""
        return f"{root}{within}/{self.plural}" + (f"/{name}" if name else "")


RESOURCE = KIND

KINDS: dict[str, Kind] = {
    RESOURCE: Kind(GROUP, VERSION, PLURAL),
    "Deployment": Kind("apps", "v1", "deployments"),
    "Pod": Kind("", "v1", "pods"),
    "Service": Kind("", "v1", "services"),
    "ServiceAccount": Kind("", "v1", "serviceaccounts"),
    "Secret": Kind("", "v1", "secrets"),
    "RoleBinding": Kind("rbac.authorization.k8s.io", "v1", "rolebindings"),
    "NetworkPolicy": Kind("networking.k8s.io", "v1", "networkpolicies"),
    "PodDisruptionBudget": Kind("policy", "v1", "poddisruptionbudgets"),
    "LeaderWorkerSet": Kind("leaderworkerset.x-k8s.io", "v1", "leaderworkersets"),
    "Job": Kind("batch", "v1", "jobs"),
    "ConfigMap": Kind("", "v1", "configmaps"),
    "PodMonitor": Kind("monitoring.coreos.com", "v1", "podmonitors"),
    "PrometheusRule": Kind("monitoring.coreos.com", "v1", "prometheusrules"),
    "Lease": Kind("coordination.k8s.io", "v1", "leases"),
    "ResourceClaimTemplate": Kind("resource.k8s.io", "v1", "resourceclaimtemplates"),
    "ResourceQuota": Kind("", "v1", "resourcequotas"),
    "DaemonSet": Kind("apps", "v1", "daemonsets"),
    "SriovNetworkNodePolicy": Kind("sriovnetwork.openshift.io", "v1", "sriovnetworknodepolicies"),
    "NicNodePolicy": Kind("mellanox.com", "v1alpha1", "nicnodepolicies"),  # these two are of the whole cluster
    "NicClusterPolicy": Kind("mellanox.com", "v1alpha1", "nicclusterpolicies"),
    "Event": Kind("events.k8s.io", "v1", "events"),
}

# What the operator makes for a resource, applies, and prunes by owner.
MADE = (
    "Deployment",
    "LeaderWorkerSet",
    "Service",
    "ServiceAccount",
    "RoleBinding",
    "NetworkPolicy",
    "PodDisruptionBudget",
    "Job",
    "ConfigMap",
    "PodMonitor",
    "PrometheusRule",
    "ResourceClaimTemplate",
)

# Kinds whose API a cluster may lack: no object of theirs is made then, and a condition says so.
OPTIONAL = frozenset({"LeaderWorkerSet", "ResourceClaimTemplate", "PodMonitor", "PrometheusRule"})
