"""Pods and watch events as the API server writes them; what is needed of a pod becomes a Worker."""

from __future__ import annotations

import msgspec

from tandem_router.worker import Role, Worker

ROLE_LABEL = "tandem.dev/role"
REVISION_LABEL = "tandem.dev/revision"
HTTP_PORT = 8000
KV_PORT = 8001


class Port(msgspec.Struct):
    """A container's port."""

    containerPort: int  # noqa: N815
    name: str = ""


class Container(msgspec.Struct):
    """A container, for its ports alone."""

    ports: list[Port] | None = None


class PodSpec(msgspec.Struct):
    """A pod's spec."""

    containers: list[Container] | None = None  # null in a bookmark


class Condition(msgspec.Struct):
    """A pod's condition."""

    type: str
    status: str


class PodStatus(msgspec.Struct):
    """A pod's status."""

    podIP: str = ""  # noqa: N815
    conditions: list[Condition] | None = None


class Metadata(msgspec.Struct):
    """Metadata of a pod, or of a list."""

    name: str = ""
    resourceVersion: str = ""  # noqa: N815
    labels: dict[str, str] | None = None
    deletionTimestamp: str | None = None  # noqa: N815
    continue_: str = msgspec.field(default="", name="continue")


class Pod(msgspec.Struct):
    """A pod."""

    metadata: Metadata
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class PodList(msgspec.Struct):
    """One page of a list."""

    metadata: Metadata
    items: list[Pod] | None = None


class Status(msgspec.Struct):
    """What the API server says when it refuses."""

    code: int = 0
    reason: str = ""
    message: str = ""


class WatchEvent(msgspec.Struct):
    """One line of a watch; what `object` is depends on `type`."""

    type: str
    object: msgspec.Raw


def worker_of(pod: Pod) -> Worker | None:
    """The pod as a worker; None without a role label that we know (it cannot be placed then)."""
    try:
        role = Role((pod.metadata.labels or {}).get(ROLE_LABEL, ""))
    except ValueError:
        return None
    ports = {port.name: port.containerPort for c in pod.spec.containers or () for port in c.ports or ()}
    host = f"[{pod.status.podIP}]" if ":" in pod.status.podIP else pod.status.podIP
    return Worker(
        name=pod.metadata.name,
        address=f"{host}:{ports.get('http', HTTP_PORT)}" if host else "",
        kv_address=f"{host}:{ports.get('kv', KV_PORT)}" if host else "",
        role=role,
        ready=any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions or ()),
        deleting=pod.metadata.deletionTimestamp is not None,
        revision=(pod.metadata.labels or {}).get(REVISION_LABEL, ""),
    )
