"""What a `template` may not ask for, unless whoever runs the cluster allows it: a way out of the pod."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

Object = dict[str, Any]
# What the setting TANDEM_TEMPLATE_ALLOW may name, and what each opens.
ALLOWABLE: Final = {
    "HostPath": "volumes of a node's own files",
    "HostPort": "ports of the node",
    "Root": "user 0",
    "Privileged": "privileged containers, added capabilities, escalation, unconfined profiles",
    "ServiceAccountToken": "tokens of the pod's service account",
}


def refused(pod: Object, allowed: frozenset[str]) -> list[str]:
    """What of a template's half of a pod is not allowed, one sentence each; empty if nothing."""
    found = [*_of_volumes(_items(pod, "volumes")), *_of_containers(_items(pod, "containers"))]
    return [
        f"{at} needs {name}, which this cluster's operator does not allow" for name, at in found if name not in allowed
    ]


def _items(holder: Any, field: str) -> list[Object]:
    """The list of objects in a field that nobody has checked; what is none is for the API server to refuse."""
    value = holder.get(field) if isinstance(holder, dict) else None
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _inner(holder: Object, field: str) -> Object:
    value = holder.get(field)
    return value if isinstance(value, dict) else {}


def _of_volumes(volumes: list[Object]) -> Iterator[tuple[str, str]]:
    for volume in volumes:
        at = f"volumes[{volume.get('name', '')}]"
        if "hostPath" in volume:
            yield "HostPath", f"{at}.hostPath"
        if any("serviceAccountToken" in source for source in _items(volume.get("projected"), "sources")):
            yield "ServiceAccountToken", f"{at}.projected"


def _of_containers(containers: list[Object]) -> Iterator[tuple[str, str]]:
    for container in containers:
        at = f"containers[{container.get('name', '')}]"
        if any(port.get("hostPort") for port in _items(container, "ports")):
            yield "HostPort", f"{at}.ports.hostPort"
        security = container.get("securityContext")
        if isinstance(security, dict):
            yield from ((name, f"{at}.securityContext.{field}") for name, field in _of_security(security))


def _of_security(security: Object) -> Iterator[tuple[str, str]]:
    if security.get("runAsUser") == 0 or security.get("runAsNonRoot") is False:
        yield "Root", "runAsUser"
    for field in ("privileged", "allowPrivilegeEscalation", "procMount", "windowsOptions"):
        if security.get(field):
            yield "Privileged", field
    if _inner(security, "capabilities").get("add"):
        yield "Privileged", "capabilities.add"
    for field in ("seccompProfile", "appArmorProfile"):
        if _inner(security, field).get("type") == "Unconfined":
            yield "Privileged", field
