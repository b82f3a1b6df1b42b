"""Tandem on a cluster: install it, apply a resource, reach its router and Prometheus."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from e2e.harness.cluster import Cluster
from e2e.harness.kube import REPO, RESOURCE, Kube, condition
from e2e.harness.ports import free_port
from e2e.harness.waiting import until

OVERLAY = "manifests/overlays/local"
SYSTEM = "tandem-system"
NAMESPACE = "serving"


def sample(name: str = "smollm2", **spec: Any) -> dict[str, Any]:
    """The shipped sample, renamed, with parts of its spec replaced."""
    body: dict[str, Any] = yaml.safe_load((REPO / "manifests/samples/smollm2.yaml").read_text())
    body["metadata"]["name"] = name
    body["spec"].update(spec)
    return body


def install(kube: Kube) -> None:
    """CRD, RBAC, operator and Prometheus from the overlay; twice, since kinds must exist before what uses them."""
    until(
        "kubectl apply -k",
        lambda: _applied(kube),
        seconds=60,
        every=1,
    )
    kube.run("rollout", "status", "deployment/tandem-operator", "-n", SYSTEM, "--timeout=90s", seconds=100)
    kube.run("rollout", "status", "deployment/prometheus", "-n", "monitoring", "--timeout=60s", seconds=70)


def _applied(kube: Kube) -> bool:
    try:
        kube.run("apply", "-k", OVERLAY, "--server-side", "--force-conflicts")
    except RuntimeError as error:
        if "no matches for kind" in str(error) or "not found" in str(error):
            return False
        raise
    return True


def resource(kube: Kube, name: str, namespace: str = NAMESPACE) -> dict[str, Any] | None:
    """The DisaggregatedInference, or None."""
    return kube.find(RESOURCE, name, namespace)


def wait_ready(kube: Kube, name: str, namespace: str = NAMESPACE, seconds: float = 120) -> dict[str, Any]:
    """Wait until Ready=True of the newest generation."""
    return until(f"{name} Ready=True", lambda: if_ready(kube, name, namespace), seconds)


def if_ready(kube: Kube, name: str, namespace: str) -> dict[str, Any] | None:
    """The resource, if Ready=True of its newest generation."""
    seen = resource(kube, name, namespace)
    same = seen and seen["metadata"]["generation"] == (seen.get("status") or {}).get("observedGeneration")
    return seen if same and condition(seen, "Ready")["status"] == "True" else None


def wait_settled(kube: Kube, name: str, namespace: str = NAMESPACE, seconds: float = 120) -> dict[str, Any]:
    """Wait until Ready=True and nothing is left to do: a resource serves as soon as one pair does."""
    return until(f"{name} is settled", lambda: if_settled(kube, name, namespace), seconds)


def if_settled(kube: Kube, name: str, namespace: str) -> dict[str, Any] | None:
    """The resource, if Ready=True of its newest generation and nothing is under way."""
    seen = if_ready(kube, name, namespace)
    busy = [kind for kind in ("Reconciling", "Rebalancing") if condition(seen, kind)["status"] == "True"]
    return None if busy else seen


def wait_condition(
    kube: Kube,
    name: str,
    kind: str,
    status: str,
    reason: str | None = None,
    namespace: str = NAMESPACE,
    seconds: float = 60,
) -> dict[str, Any]:
    """Wait for a condition's status (and reason)."""

    def look() -> dict[str, Any] | None:
        seen = condition(resource(kube, name, namespace), kind)
        return seen if seen["status"] == status and reason in {None, seen["reason"]} else None

    return until(f"{name} {kind}={status}/{reason or '*'}", look, seconds)


def roles(kube: Kube, name: str, namespace: str = NAMESPACE) -> tuple[int, int]:
    """Ready workers by role label, as the API server shows them: (prefill, decode)."""
    pods = kube.items("pods", namespace, f"tandem.dev/resource={name},tandem.dev/component=worker")
    ready = [p["metadata"]["labels"].get("tandem.dev/role") for p in pods if condition(p, "Ready")["status"] == "True"]
    return ready.count("prefill"), ready.count("decode")


def staying_pods(kube: Kube, namespace: str, selector: str) -> list[dict[str, Any]]:
    """Pods that are not on their way out."""
    return [pod for pod in kube.items("pods", namespace, selector) if "deletionTimestamp" not in pod["metadata"]]


def the_pod(kube: Kube, namespace: str, selector: str, seconds: float = 60) -> dict[str, Any]:
    """The one ready pod that is not on its way out: beside it an earlier one may still finish what it has."""

    def look() -> dict[str, Any] | None:
        staying = staying_pods(kube, namespace, selector)
        return staying[0] if len(staying) == 1 and condition(staying[0], "Ready")["status"] == "True" else None

    return until(f"there is one ready pod of {selector}", look, seconds)


@dataclass(frozen=True, slots=True)
class Prometheus:
    """The Prometheus that scrapes the workers."""

    url: str

    def value(self, query: str) -> float | None:
        """One number, or None where the vector is empty."""
        path = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        with urllib.request.urlopen(path, timeout=5) as answer:  # noqa: S310 - a loopback address of our own
            found = json.load(answer)["data"]["result"]
        return float(found[0]["value"][1]) if found else None


@contextlib.contextmanager
def forwarded(cluster: Cluster, namespace: str, service: str, port: int) -> Iterator[str]:
    """A loopback URL of a Service, by `kubectl port-forward`."""
    local = free_port()
    command = [
        "kubectl",
        "port-forward",
        "-n",
        namespace,
        f"service/{service}",
        f"{local}:{port}",
        "--address=127.0.0.1",
    ]
    process = subprocess.Popen(
        command, env=cluster.kube.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until(f"port-forward of {service}", lambda: listens(local), 15)
        yield f"http://127.0.0.1:{local}"
    finally:
        process.terminate()
        process.wait(10)


def listens(port: int) -> bool:
    """Does somebody listen on this port of the loopback?"""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
