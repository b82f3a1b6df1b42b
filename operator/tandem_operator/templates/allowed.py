"""What a `template` may not ask for, unless whoever runs the cluster allows it: a way out of the pod.

At least what Kubernetes' pod security standard `restricted` keeps from a pod, of what a template can reach: it has no
field for host namespaces, sysctls or the pod's own security context.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

Object = dict[str, Any]
# What the setting TANDEM_TEMPLATE_ALLOW may name, and what each opens.
ALLOWABLE: Final = {
    "HostPath": "volumes of a node's own files",
    "HostPort": "ports of the node",
    "InlineVolume": "volumes of a server that the pod itself names, such as nfs and iscsi",
    "ProbeHost": "probes and hooks that the node sends to another host",
    "Root": "user 0",
    "Privileged": "privileged containers, capabilities, escalation, unconfined profiles, SELinux contexts",
    "ServiceAccountToken": "tokens of the pod's service account",
}
# The standard's, and `image`: files of a registry that the node mounts read-only.
VOLUMES: Final = frozenset(
    (
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
        "image",
    )
)
SELINUX_TYPES: Final = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")
APPARMOR: Final = "container.apparmor.security.beta.kubernetes.io/"  # the field's predecessor, which still holds

Asked = tuple[str, str]  # a word of ALLOWABLE, the field that asks for it


def refused(template: Object, allowed: frozenset[str]) -> list[str]:
    """What of a template's half of a pod is not allowed, one sentence each; empty if nothing."""
    pod = template["spec"]
    found = [*_of_annotations(_inner(template["metadata"], "annotations"))]
    found += [*_of_volumes(_items(pod, "volumes")), *_of_containers(_items(pod, "containers"))]
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


def _of_annotations(annotations: Object) -> Iterator[Asked]:
    for key, value in annotations.items():
        if key.startswith(APPARMOR) and value == "unconfined":
            yield "Privileged", f"annotations[{key}]"


def _of_volumes(volumes: list[Object]) -> Iterator[Asked]:
    for volume in volumes:
        at = f"volumes[{volume.get('name', '')}]"
        for source in sorted(volume.keys() - VOLUMES - {"name"}):
            yield ("HostPath" if source == "hostPath" else "InlineVolume"), f"{at}.{source}"
        if any("serviceAccountToken" in source for source in _items(volume.get("projected"), "sources")):
            yield "ServiceAccountToken", f"{at}.projected"


def _of_containers(containers: list[Object]) -> Iterator[Asked]:
    for container in containers:
        at = f"containers[{container.get('name', '')}]"
        if any(port.get("hostPort") for port in _items(container, "ports")):
            yield "HostPort", f"{at}.ports.hostPort"
        yield from (("ProbeHost", f"{at}.{field}.host") for field in _other_hosts(container))
        security = container.get("securityContext")
        if isinstance(security, dict):
            asked = (*_of_users(security), *_of_security(security), *_of_capabilities(_inner(security, "capabilities")))
            yield from ((name, f"{at}.securityContext.{field}") for name, field in asked)


def _other_hosts(container: Object) -> Iterator[str]:
    """The handlers that the kubelet would send to a host of the template's choice, out of the node's own network."""
    handlers = [(name, _inner(container, name)) for name in PROBES]
    lifecycle = _inner(container, "lifecycle")
    handlers += [(f"lifecycle.{name}", _inner(lifecycle, name)) for name in ("postStart", "preStop")]
    for name, handler in handlers:
        yield from (f"{name}.{way}" for way in ("httpGet", "tcpSocket") if _inner(handler, way).get("host"))


def _of_users(security: Object) -> Iterator[Asked]:
    if security.get("runAsUser") == 0 or security.get("runAsNonRoot") is False:
        yield "Root", "runAsUser"


def _of_security(security: Object) -> Iterator[Asked]:
    for field in ("privileged", "allowPrivilegeEscalation", "windowsOptions"):
        if security.get(field):
            yield "Privileged", field
    if security.get("procMount", "Default") != "Default":
        yield "Privileged", "procMount"
    for field in ("seccompProfile", "appArmorProfile"):
        if _inner(security, field).get("type") == "Unconfined":
            yield "Privileged", field
    context = _inner(security, "seLinuxOptions")
    if context.get("user") or context.get("role") or context.get("type", "") not in SELINUX_TYPES:
        yield "Privileged", "seLinuxOptions"


def _of_capabilities(capabilities: Object) -> Iterator[Asked]:
    if capabilities.get("add"):
        yield "Privileged", "capabilities.add"
    # A list of the template's replaces the one that drops all.
    dropped = capabilities.get("drop", ["ALL"])
    if not isinstance(dropped, list) or "ALL" not in dropped:
        yield "Privileged", "capabilities.drop"
