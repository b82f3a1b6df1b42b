"""What the field table sets: two values for each field, and what must be beside it.

A field that is not here gets values from its schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from e2e.tables.paths import Object, put

WORKERS, ROUTER = "spec.pools[].template", "spec.router.template"
POD: Mapping[str, tuple[Any, Any]] = {
    "resources.limits": ({"cpu": "2"}, {"cpu": "3", "memory": "4Gi"}),
    "resources.requests": ({"cpu": "1"}, {"memory": "2Gi"}),
    "nodeSelector": ({"zone": "a"}, {"zone": "b", "disk": "fast"}),
    "tolerations[].key": ("dedicated", "example.com/dedicated"),
    "tolerations[].value": ("serving", "batch"),
    "env[].name": ("UCX_LOG_LEVEL", "NCCL_DEBUG"),
    "env[].value": ("info", "warn"),
    "env[].valueFrom": (
        {"fieldRef": {"fieldPath": "spec.nodeName"}},
        {"configMapKeyRef": {"name": "tuning", "key": "level"}},
    ),
    "annotations": ({"example.com/a": "1"}, {"example.com/a": "2", "example.com/b": "1"}),
    "labels": ({"team": "a"}, {"team": "b"}),
    "affinity": (
        {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}},
        {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    ),
    "topologySpreadConstraints": (
        [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
        [{"maxSkew": 2, "topologyKey": "host", "whenUnsatisfiable": "DoNotSchedule"}],
    ),
    "priorityClassName": ("serving", "batch"),
    "runtimeClassName": ("nvidia", "gvisor"),
    "schedulerName": ("volcano", "kai"),
    "imagePullSecrets": ([{"name": "registry"}], [{"name": "mirror"}]),
    "volumes": ([{"name": "data", "emptyDir": {}}], [{"name": "data", "emptyDir": {"medium": "Memory"}}]),
    "volumeMounts": ([{"name": "tmp", "mountPath": "/scratch"}], [{"name": "tmp", "mountPath": "/other"}]),
    "containers": ([{"name": "side", "image": "side:1"}], [{"name": "side", "image": "side:2"}]),
}
VALUES: Mapping[str, tuple[Any, ...]] = {
    "spec.rollout.maxUnavailable": (4, 6),  # shared out by two roles
    "spec.model.source": ("file:///models/a", "file:///models/b", "hf://org/name"),
    "spec.model.cache.hostPath": ("/var/cache/models", "/srv/models"),
    "spec.scaleToZero.afterSeconds": (600, 900),
    "spec.scaleToZero.holdSeconds": (120, 240),
    "spec.engine.image": ("example.com/worker:1", "example.com/worker:2"),
    "spec.engine.version": ("0.12.0", "0.13.0"),  # the first does not know what to do where a transfer broke
    "spec.pools[].hardware.perNode": (4, 2),
    "spec.engine.args": (["--max-batch", "32"], ["--max-batch", "16"]),
    "spec.pools[].name": ("first", "second"),
    "spec.pools[].hardware.accelerator": ("a100-sxm-80gb", "l40s"),
    "spec.pools[].hardware.resourceName": ("example.com/gpu", "example.com/npu"),
    "spec.pools[].hardware.nodeSelector": ({"gpu": "a"}, {"gpu": "b"}),
    "spec.pools[].parallelism.pipeline": (2, 3),
    "spec.pools[].parallelism.expert": (2, 4, 3),
    "spec.pools[].parallelism.data": (2, 3),
    "spec.pools[].replicas.min": (2, 3),
    "spec.pools[].replicas.max": (5, 6),
    "spec.pools[].replicas.initial": (2, 3),
    "spec.transfer.rdma.resource": ("rdma/hca_shared_devices_b", "rdma/hca_shared_devices_c"),
    "spec.transfer.rdma.devices": (["mlx5_0:1"], ["mlx5_1:1"]),
    "spec.transfer.rdma.networks": (["rdma-net"], ["rdma-net", "rdma-net-b"]),
    "spec.rebalance.roles.minPrefill": (2, 3),
    "spec.rebalance.roles.minDecode": (2, 3),
    "spec.rebalance.budget.gpus": (6, 7),
    "spec.rebalance.budget.perAccelerator": ({"h100-sxm": 3}, {"h100-sxm": 4}),
    **{f"{where}.{field}": pair for where in (WORKERS, ROUTER) for field, pair in POD.items()},
}
WORDS = ("a", "b", "first-one", "second-one", "x/y", "x/z", "/x", "/y")  # for a field of text that is not above


def shared_device(body: Object) -> None:
    """RDMA, so that its details mean something."""
    put(body, "spec.transfer.rdma", {"mode": "SharedDevice", "resource": "rdma/hca_shared_devices_a"})


def networked(body: Object) -> None:
    """RDMA with a network, so that it matters who attaches it."""
    put(body, "spec.transfer.rdma", {"mode": "HostDevice", "networks": ["rdma-net"]})


def claimed(body: Object) -> None:
    """Devices that are claimed, so that their classes mean something."""
    put(body, "spec.transfer.rdma", {"mode": "DRA", "deviceClass": "nic"})


def any_taint(where: str) -> Callable[[Object], None]:
    """A toleration to change."""
    return lambda body: _put(body, f"{where}.tolerations", [{"key": "dedicated"}])


def variable(where: str) -> Callable[[Object], None]:
    """An environment variable to change."""
    return lambda body: _put(body, f"{where}.env", [{"name": "UCX_LOG_LEVEL"}])


def policies(way: str, *values: int) -> Callable[[Object], None]:
    """Scaling policies: one to change, and perhaps one beside it."""
    return lambda body: _put(body, f"spec.rebalance.behavior.{way}.policies", [{"value": value} for value in values])


def _put(body: Object, path: str, value: Any) -> None:
    put(body, path, value)


def colocated(body: Object) -> None:
    """Pools that mode Colocated takes."""
    for pool in body["spec"]["pools"]:
        pool["role"] = "Both"


def both_ways(body: Object) -> None:
    """Pools of both modes, as Auto takes them."""
    first = body["spec"]["pools"][0]
    body["spec"]["pools"].append({**first, "name": "both", "role": "Both"})


def hub(body: Object) -> None:
    """A model that is pulled, so that what goes with it means something."""
    put(body, "spec.model.source", "hf://org/model")
    put(body, "spec.model.revision", "0123abc")


def third_pool(body: Object) -> None:
    """One more prefill pool, so that another may change its role."""
    first = body["spec"]["pools"][0]
    body["spec"]["pools"].append({**first, "name": "more"})


def other_engine(body: Object) -> None:
    """An engine of another maker, with what it needs."""
    image_for_any_engine(body)
    put(body, "spec.engine.name", "vllm")


def spanning(body: Object) -> None:
    """Workers of more accelerators than a server has."""
    other_engine(body)
    put(body, "spec.pools[].parallelism.tensor", 16)


def image_for_any_engine(body: Object) -> None:
    """An image and a backend that every engine takes, so that its name alone decides."""
    put(body, "spec.engine.image", "example.com/engine:1")
    put(body, "spec.transfer.backend", "nixl")


def experts(ranks: int) -> Callable[[Object], None]:
    """An engine that spreads experts, over this many ranks."""

    def beside(body: Object) -> None:
        other_engine(body)
        put(body, "spec.pools[].parallelism.tensor", ranks)

    return beside


# What a value needs beside it, by field and value.
WITH: Mapping[tuple[str, Any], Callable[[Object], None]] = {
    ("spec.mode", "Colocated"): colocated,
    ("spec.mode", "Auto"): both_ways,
    ("spec.pools[].parallelism.expert", 4): experts(4),
    **{
        ("spec.transfer.rdma.mode", mode): lambda body: _put(
            body, "spec.transfer.rdma.resource", "rdma/hca_shared_devices_a"
        )
        for mode in ("SharedDevice", "SRIOV", "HostDevice", "EFA")
    },
    ("spec.transfer.rdma.mode", "DRA"): lambda body: _put(body, "spec.transfer.rdma.deviceClass", "nic"),
}
# Values that say what holds without them.
AS_UNSET = frozenset(
    {
        ("spec.rebalance.roleFlips", True),
        ("spec.rebalance.behavior.scaleUp.selectPolicy", "Max"),
        ("spec.rebalance.behavior.scaleDown.selectPolicy", "Max"),
    }
)


def several(body: Object) -> None:
    """Pools of some size: of one worker no more than one can go."""
    for pool in body["spec"]["pools"]:
        pool["replicas"] = {"min": 4, "max": 6}


def sleeping(body: Object) -> None:
    """A resource that may sleep."""
    put(body, "spec.scaleToZero.afterSeconds", 300)


# What the cluster's operator has to allow, for a field that it refuses otherwise.
ALLOWED: Mapping[str, str] = {"spec.model.cache.hostPath": "HostPath"}
BESIDE: Mapping[str, Callable[[Object], None]] = {
    "spec.rollout.maxUnavailable": several,
    "spec.scaleToZero.holdSeconds": sleeping,
    "spec.pools[].role": third_pool,
    "spec.model.revision": hub,
    "spec.model.authSecretRef.name": hub,
    "spec.model.cache.persistentVolumeClaim": hub,
    "spec.model.cache.hostPath": hub,
    "spec.engine.name": image_for_any_engine,
    "spec.engine.version": other_engine,
    "spec.pools[].hardware.perNode": spanning,
    "spec.pools[].parallelism.pipeline": other_engine,
    "spec.pools[].parallelism.expert": experts(2),
    "spec.pools[].parallelism.data": other_engine,
    **{
        f"spec.transfer.rdma.{name}": shared_device for name in ("resource", "count", "devices", "gidIndex", "networks")
    },
    "spec.transfer.rdma.attachment": networked,
    "spec.transfer.rdma.deviceClass": claimed,
    "spec.pools[].hardware.deviceClass": claimed,
    **{
        f"{where}.tolerations[].{name}": any_taint(where) for where in (WORKERS, ROUTER) for name in ("value", "effect")
    },
    **{f"{where}.tolerations[].tolerationSeconds": any_taint(where) for where in (WORKERS, ROUTER)},
    **{f"{where}.env[].{name}": variable(where) for where in (WORKERS, ROUTER) for name in ("value", "valueFrom")},
    **{f"spec.rebalance.behavior.{way}.selectPolicy": policies(way, 2, 5) for way in ("scaleUp", "scaleDown")},
    **{
        f"spec.rebalance.behavior.{way}.policies[].{name}": policies(way, 2)
        for way in ("scaleUp", "scaleDown")
        for name in ("type", "periodSeconds", "value")
    },
}


def values_of(path: str, schema: Object, start: Any) -> list[Any]:
    """What to set the field to, one after the other; `start` is what it is now. All values of an enumeration."""
    if path in VALUES:
        return list(VALUES[path])
    if "enum" in schema:
        return [value for value in schema["enum"] if value != start] + ([start] if start is not None else [])
    match schema.get("type"):
        case "boolean":
            return [not start, bool(start)]
        case "integer":
            low = schema["minimum"] if start is None else start
            return [low + 1, low + 2] if low + 2 <= schema["maximum"] else [low - 1, low - 2]
        case "string":
            fitting = [word for word in WORDS if re.search(schema.get("pattern", ""), word)]
            return fitting[:2]
    raise LookupError(f"{path}: say in field_values.py what to set it to")
