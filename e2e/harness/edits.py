"""An edit of a resource that its router's Deployment must follow, and no worker."""

from __future__ import annotations

from e2e.harness.kube import RESOURCE, Kube
from e2e.harness.waiting import until
from e2e.harness.world import NAMESPACE, resource


def edit(kube: Kube, name: str = "smollm2", namespace: str = NAMESPACE) -> None:
    """Make it."""
    slo = (resource(kube, name, namespace) or {})["spec"]["slo"]
    change = {"slo": {"ttftMilliseconds": slo["ttftMilliseconds"] + 1}}
    kube.patch(RESOURCE, name, namespace, {"spec": change})


def router_generation(kube: Kube, name: str = "smollm2", namespace: str = NAMESPACE) -> int:
    """What grows when the edit is carried out; 0: there is no router."""
    found = kube.find("deployment", f"{name}-router", namespace)
    return int(found["metadata"]["generation"]) if found else 0


def follows_an_edit(kube: Kube, seconds: float, name: str = "smollm2", namespace: str = NAMESPACE) -> None:
    """Make one, and wait until it is carried out."""
    before = router_generation(kube, name, namespace)
    edit(kube, name, namespace)
    until(f"{namespace}/{name} follows an edit", lambda: router_generation(kube, name, namespace) > before, seconds)
