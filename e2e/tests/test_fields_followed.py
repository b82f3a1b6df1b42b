"""Fields on the real API server: set, changed and left out again, and the live children follow each time.

All fields are tried on an API server in memory (test_fields.py); here the real one's apply adds and takes away. The
resource is suspended, and its pods fit no node, so that no process is started.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from e2e.harness.asleep import children
from e2e.harness.kube import RESOURCE, Kube
from e2e.harness.waiting import GaveUpError, until
from e2e.harness.world import NAMESPACE, sample, wait_condition
from e2e.tables.paths import flat, put

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

NAME = "walked"
NOWHERE = {"walked": "nowhere"}
PREFILL, DECODE, ROUTER = (f"deployment/{NAME}-{part}" for part in ("prefill", "decode", "router"))
META, POD = "spec.template.metadata", "spec.template.spec"
MAIN = f"{POD}.containers[worker]"
POOL, FRONT = "spec.pools[].template", "spec.router.template"
RDMA = "rdma/hca_shared_devices_a"


def row(path: str, child: str, place: str, *steps: tuple[Any, Any], **beside: Any) -> Any:
    """A field, where it is to be seen, and (value, what is then there) of each step; `beside`: of the spec."""
    return pytest.param(path, child, place, steps, beside, id=f"{path} in {child}")


def variable(value: str) -> list[dict[str, str]]:
    return [{"name": "UCX_LOG_LEVEL", "value": value}]


def taint(value: str) -> list[dict[str, str]]:
    return [{"key": "dedicated", "value": value, "effect": "NoSchedule"}]


def volume(size: str) -> list[dict[str, Any]]:
    return [{"name": "data", "emptyDir": {"sizeLimit": size}}]


def count(number: int) -> dict[str, int]:
    return {"min": number, "max": number}


ROWS = [
    row(
        f"{POOL}.env",
        PREFILL,
        f"{MAIN}.env[UCX_LOG_LEVEL].value",
        (variable("info"), "info"),
        (variable("warn"), "warn"),
    ),
    row(f"{POOL}.resources.limits", PREFILL, f"{MAIN}.resources.limits.cpu", ({"cpu": "2"}, "2"), ({"cpu": "3"}, "3")),
    row(f"{POOL}.labels", PREFILL, f"{META}.labels.team", ({"team": "a"}, "a"), ({"team": "b"}, "b")),
    row(
        f"{POOL}.annotations", PREFILL, f"{META}.annotations.x/y", ({"x/y": "1"}, "1"), ({"x/y": "2", "x/z": "1"}, "2")
    ),
    row(f"{POOL}.tolerations", PREFILL, f"{POD}.tolerations[1].value", (taint("a"), "a"), (taint("b"), "b")),
    row(
        f"{POOL}.volumes",
        PREFILL,
        f"{POD}.volumes[data].emptyDir.sizeLimit",
        (volume("1Gi"), "1Gi"),
        (volume("2Gi"), "2Gi"),
    ),
    row(f"{POOL}.priorityClassName", PREFILL, f"{POD}.priorityClassName", ("serving", "serving"), ("batch", "batch")),
    row(
        f"{POOL}.containers",
        PREFILL,
        f"{POD}.containers[side].image",
        ([{"name": "side", "image": "side:1"}], "side:1"),
    ),
    row("spec.engine.image", DECODE, f"{MAIN}.image", ("worker:1", "worker:1"), ("worker:2", "worker:2")),
    row("spec.transfer.rdma.count", DECODE, f"{MAIN}.resources.limits.{RDMA}", (2, "2"), (3, "3")),
    row(
        "spec.transfer.rdma.networks",
        *(DECODE, f"{META}.annotations.k8s.v1.cni.cncf.io/networks"),
        *((["one"], "one"), (["one", "two"], "one,two")),
    ),
    row(
        "spec.pools[].replicas",
        *(f"poddisruptionbudget/{NAME}-role-prefill", "spec.minAvailable"),
        *((count(3), 2), (count(2), 1)),
    ),
    row(
        "spec.rollout.maxUnavailable",
        *(PREFILL, "spec.strategy.rollingUpdate.maxUnavailable"),
        *((4, 2), (9, 3)),
        suspend=False,
        pools=[pool | {"replicas": count(4)} for pool in sample()["spec"]["pools"]],
    ),
    row("spec.router.replicas", ROUTER, "spec.replicas", (3, 3), (2, 2), suspend=False),
    row("spec.router.tls.secretName", ROUTER, f"{POD}.volumes[tls].secret.secretName", ("one", "one"), ("two", "two")),
    row("spec.router.tls.secretName", f"service/{NAME}-router", "spec.ports[https].port", ("one", 8443)),
    row(
        "spec.router.apiKeysSecretRef.name",
        *(ROUTER, f"{POD}.volumes[api-keys].secret.secretName"),
        *(("one", "one"), ("two", "two")),
    ),
    row(f"{FRONT}.nodeSelector", ROUTER, f"{POD}.nodeSelector.zone", (NOWHERE | {"zone": "a"}, "a"), (NOWHERE, None)),
    row(
        "spec.monitoring.dashboard",
        f"configmap/{NAME}-dashboard",
        "metadata.name",
        (True, f"{NAME}-dashboard"),
        (False, None),
    ),
]


def body(**spec: Any) -> dict[str, Any]:
    """The resource without the field."""
    found = sample(NAME, **{"suspend": True, "rebalance": {"mode": "Off", "roleFlips": False}, **spec})
    for pod in [*found["spec"]["pools"], found["spec"]["router"]]:
        put(pod, "template.nodeSelector", dict(NOWHERE))
    return found


@pytest.fixture(scope="module")
def walked(kube: Kube) -> Iterator[dict[str, Any]]:
    """Its children as they are at first."""
    kube.apply(yaml.safe_dump(body()))
    try:
        wait_condition(kube, NAME, "Ready", "True", "Suspended")
        yield children(kube, NAME)
    finally:
        kube.run("delete", RESOURCE, NAME, "-n", NAMESPACE, "--wait=true")


@pytest.mark.parametrize(("path", "child", "place", "steps", "beside"), ROWS)
def test_children_follow(
    kube: Kube,
    walked: dict[str, Any],
    path: str,
    child: str,
    place: str,
    steps: tuple[tuple[Any, Any], ...],
    beside: dict[str, Any],
) -> None:
    for value, expected in steps:
        kube.apply(yaml.safe_dump(put(body(**beside), path, value)))
        with contextlib.suppress(GaveUpError):
            until(f"{child} follows", lambda e=expected: shown(kube, child, place) == e, 30)
        assert shown(kube, child, place) == expected, f"{path}: {value}"
    kube.apply(yaml.safe_dump(body()))
    with contextlib.suppress(GaveUpError):
        until("all is as at first", lambda: not differences(kube, walked), 60)
    assert differences(kube, walked) == []


def shown(kube: Kube, child: str, place: str) -> Any:
    """What is there in the live child; None where there is nothing."""
    kind, _, name = child.partition("/")
    return dict(flat(kube.find(kind, name, NAMESPACE) or {})).get(place)


def differences(kube: Kube, first: dict[str, Any]) -> list[str]:
    """Where the children are not as at first."""
    found = children(kube, NAME)
    return sorted(at for at in first.keys() | found.keys() if first.get(at) != found.get(at))
