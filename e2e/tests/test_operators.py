"""More than one operator on a real control plane: one writes, whoever waits, stood still, or died.

Who wrote is the API server's word: its audit log names the pod of each write's token.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import yaml

from e2e.harness.audit import Audit
from e2e.harness.cluster import Cluster
from e2e.harness.edits import follows_an_edit, router_generation
from e2e.harness.kube import RESOURCE, Kube, condition
from e2e.harness.parts import frozen, process_in_pod
from e2e.harness.waiting import until
from e2e.harness.world import NAMESPACE, OVERLAY, SYSTEM, sample, staying_pods, wait_settled
from e2e.tables.installations import ONE, WIDE, about
from e2e.tests.test_outages import of_workers
from tandem_operator.loop.leader import LEASE_S, NAME, RENEW_EVERY_S
from tandem_operator.loop.settings import WIDE_LEASE_NAMESPACE

OPERATOR = "app.kubernetes.io/name=tandem-operator"
SLOW_S = 30.0  # what a busy machine may add
TAKEN_S = LEASE_S + 2 * RENEW_EVERY_S + SLOW_S
LEAVES_S = 1.1 * 60 + SLOW_S  # by the next pass, which a resync (each 60 s in the local overlay) brings at the latest
NEAR = "near"
MANY = tuple(f"many-{number}" for number in range(12))  # one pass over each takes the operator a while

pytestmark = [pytest.mark.slow, pytest.mark.cluster]


@pytest.fixture
def audit(tandem: Cluster) -> Audit:
    return Audit(tandem)


@pytest.fixture
def second(kube: Kube, smollm2: dict) -> Iterator[dict[str, Any]]:
    """Another cluster-wide operator, as a second release in its own namespace would have it."""
    with operator_in(kube, "second-system") as pod:
        yield pod


def test_the_second_is_well_and_writes_nothing(kube: Kube, audit: Audit, second: dict) -> None:
    first = name_of(first_operator(kube))
    assert holder(kube) == first
    for _ in range(3):
        seen = renewed(kube)
        follows_an_edit(kube, 60)
        until("the Lease is renewed", lambda seen=seen: renewed(kube) != seen, LEASE_S)
    assert {write.resource for write in audit.by(first)} >= {"leases", "deployments"}
    assert audit.by(name_of(second)) == []
    assert is_well(kube, second)


def test_who_stood_still_past_its_lease_writes_no_more(kube: Kube, audit: Audit, second: dict) -> None:
    """It is stopped in the middle of passes, so that it has writes left to make when it goes on."""
    first, workers = first_operator(kube), of_workers(kube)
    with many_resources(kube):
        until("the first is at work", lambda: len(audit.by(name_of(first))) > 20, 60, every=0.01)
        with frozen(process_in_pod(first, "tandem-operator")):
            until("the second holds the Lease", lambda: holder(kube) == name_of(second), TAKEN_S)
            follows_an_edit(kube, 60)
            until("all is carried out", lambda: all(router_generation(kube, name) for name in MANY), 120)
            audit.begin()
        until("the first ends and waits", lambda: restarts(kube, first) == restarts_of(first) + 1, 60)
        until("it is well", lambda: is_ready(kube, first), 60)
        follows_an_edit(kube, 60)
    assert audit.by(name_of(second))
    assert audit.by(name_of(first)) == []
    assert holder(kube) == name_of(second)
    assert of_workers(kube) == workers


def test_one_that_ends_gives_way_and_one_that_died_is_missed(kube: Kube, audit: Audit, second: dict) -> None:
    workers, made = of_workers(kube), children(kube)
    scale(kube, 0)
    try:
        until("the second holds the Lease", lambda: holder(kube) == name_of(second), 2 * RENEW_EVERY_S + SLOW_S)
        follows_an_edit(kube, 60)
    finally:
        scale(kube, 1)
    first = until("the first is back", lambda: first_operator(kube), 60)
    until("it is well", lambda: is_ready(kube, first), 60)
    assert holder(kube) == name_of(second)
    os.kill(process_in_pod(second, "tandem-operator"), signal.SIGKILL)  # its pod is never started again
    audit.begin()
    follows_an_edit(kube, TAKEN_S)
    assert holder(kube) == name_of(first)
    wait_settled(kube, "smollm2")
    assert {write.pod for write in audit.writes()} == {name_of(first)}
    assert {write.resource for write in audit.writes() if write.code == 201} <= {"events"}
    assert (of_workers(kube), children(kube)) == (workers, made), "nothing is restarted, nothing made anew"


def test_a_namespaces_own_operator_and_a_cluster_wide_one_share_nothing(
    kube: Kube, audit: Audit, smollm2: dict
) -> None:
    wide = name_of(first_operator(kube))
    kube.apply(yaml.safe_dump(about("v1", "Namespace", NEAR)))
    try:
        kube.apply(yaml.safe_dump(asleep("one", NEAR)))
        until("it is carried out", lambda: router_generation(kube, "one", NEAR), 60)
        assert {write.pod for write in audit.writes() if write.namespace == NEAR} == {wide}
        with operator_in(kube, "near-system", watches=NEAR) as pod:
            near = name_of(pod)
            until("the cluster-wide one leaves it", lambda: left_to(kube, near), LEAVES_S)
            audit.begin()
            follows_an_edit(kube, 60, "one", NEAR)
            follows_an_edit(kube, 60)
            seen = {(write.namespace, write.pod) for write in audit.writes() if write.resource != "leases"}
            assert seen == {(NEAR, near), (NAMESPACE, wide)}
            assert (holder(kube), holder(kube, NEAR)) == (wide, near)
        audit.begin()
        follows_an_edit(kube, TAKEN_S, "one", NEAR)
        assert {write.pod for write in audit.writes() if write.namespace == NEAR} == {wide}, "it is its again"
    finally:
        kube.run("delete", "namespace", NEAR, seconds=120)


@contextlib.contextmanager
def operator_in(kube: Kube, namespace: str, watches: str = "") -> Iterator[dict[str, Any]]:
    """An operator as it is shipped, installed there and well; its pod is never started again."""
    rights = yaml.safe_dump_all(rights_in(namespace, watches))
    account = about("v1", "ServiceAccount", "tandem-operator", namespace)
    pod = pod_in(kube, namespace, watches)
    try:
        kube.apply(yaml.safe_dump_all([about("v1", "Namespace", namespace), account]) + "---\n" + rights)
        kube.apply(yaml.safe_dump(pod))
        yield until("the operator is well", lambda: is_ready(kube, pod), 90)
    finally:
        kube.run("delete", "namespace", namespace, seconds=120)
        kube.run("delete", "-f", "-", "--ignore-not-found", stdin=rights, seconds=120)


def rights_in(namespace: str, watches: str) -> list[dict[str, Any]]:
    """The shipped rules for its account there: cluster-wide, or as roles of the namespace that it watches."""
    roles = [replace(role, namespace=watches) for role in ONE.roles[:2]] if watches else WIDE.roles
    return [item for role in roles for item in role.objects(namespace, "tandem-operator", namespace)]


def pod_in(kube: Kube, namespace: str, watches: str) -> dict[str, Any]:
    """A pod of the shipped Deployment's template."""
    shipped = yaml.safe_load_all(kube.run("kustomize", OVERLAY))
    (found,) = [d for d in shipped if (d["kind"], d["metadata"]["name"]) == ("Deployment", "tandem-operator")]
    spec = found["spec"]["template"]["spec"] | {"restartPolicy": "Never"}
    spec["containers"][0]["env"].append({"name": "TANDEM_NAMESPACE", "value": watches})
    return {**about("v1", "Pod", "operator", namespace), "spec": spec}


def asleep(name: str, namespace: str = NAMESPACE) -> dict[str, Any]:
    """A resource with all its children and no pod."""
    body = sample(name, suspend=True)
    body["metadata"]["namespace"] = namespace
    return body


@contextlib.contextmanager
def many_resources(kube: Kube) -> Iterator[None]:
    """Work for the operator, as soon as the body begins."""
    try:
        kube.apply(yaml.safe_dump_all([asleep(name) for name in MANY]))
        yield
    finally:
        kube.run("delete", RESOURCE, *MANY, "-n", NAMESPACE, "--ignore-not-found", seconds=120)


def first_operator(kube: Kube) -> dict[str, Any]:
    """The pod of the operator that all tests have."""
    found = staying_pods(kube, SYSTEM, OPERATOR)
    return found[0] if found else {}


def name_of(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["name"])


def again(kube: Kube, pod: dict[str, Any]) -> dict[str, Any]:
    """The pod as it is now."""
    return kube.find("pod", name_of(pod), pod["metadata"]["namespace"]) or pod


def is_ready(kube: Kube, pod: dict[str, Any]) -> dict[str, Any] | None:
    """The pod, if the kubelet's probes find it well."""
    found = again(kube, pod)
    return found if condition(found, "Ready")["status"] == "True" else None


def restarts_of(pod: dict[str, Any]) -> int:
    return sum(status["restartCount"] for status in pod["status"]["containerStatuses"])


def restarts(kube: Kube, pod: dict[str, Any]) -> int:
    return restarts_of(again(kube, pod))


def is_well(kube: Kube, pod: dict[str, Any]) -> bool:
    return is_ready(kube, pod) is not None and restarts(kube, pod) == 0


def lease(kube: Kube, namespace: str) -> dict[str, Any]:
    found: dict[str, Any] = (kube.find("lease", NAME, namespace) or {"spec": {}})["spec"]
    return found


def holder(kube: Kube, namespace: str = WIDE_LEASE_NAMESPACE) -> str:
    return str(lease(kube, namespace).get("holderIdentity") or "")


def renewed(kube: Kube) -> str:
    return str(lease(kube, WIDE_LEASE_NAMESPACE)["renewTime"])


def scale(kube: Kube, replicas: int) -> None:
    kube.run("scale", "deployment/tandem-operator", "-n", SYSTEM, f"--replicas={replicas}")


def children(kube: Kube) -> set[tuple[str, str, str]]:
    """What smollm2 has: kind, name, uid."""
    kinds = "deployments,services,serviceaccounts,rolebindings,networkpolicies,poddisruptionbudgets,secrets"
    found = kube.json("get", kinds, "-n", NAMESPACE, "-l", "tandem.dev/resource=smollm2")["items"]
    return {(item["kind"], name_of(item), item["metadata"]["uid"]) for item in found}


def left_to(kube: Kube, pod: str) -> bool:
    """Has the cluster-wide operator said that it leaves the namespace to this one?"""
    events = kube.items("events.v1.events.k8s.io", NEAR)
    return any(e["reason"] == "LeftToOther" and pod in json.dumps(e) for e in events)
