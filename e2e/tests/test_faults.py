"""Every class of fault once: what the resource says, that others do not notice, and that an edit or time heals it."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
import yaml

from e2e.demo.chat import ask
from e2e.harness.audit import Audit
from e2e.harness.cluster import Cluster
from e2e.harness.kube import RESOURCE, Kube, condition
from e2e.harness.waiting import until
from e2e.harness.world import (
    NAMESPACE,
    SYSTEM,
    resource,
    roles,
    sample,
    staying_pods,
    wait_condition,
    wait_ready,
)


@pytest.fixture
def broken(kube: Kube) -> Any:
    """Apply a changed, small copy of the sample named `broken`; it is gone afterwards, its children with it."""

    def apply(**spec: Any) -> None:
        kube.apply(yaml.safe_dump(sample("broken", **spec)))

    yield apply
    kube.run("delete", RESOURCE, "broken", "-n", NAMESPACE, "--ignore-not-found", "--wait=true")
    until("no pod of `broken` is left", lambda: not kube.items("pods", NAMESPACE, "tandem.dev/resource=broken"), 90)


def pools(**first: Any) -> list[dict]:
    """The sample's pools, both with changed fields."""
    return [{**pool, **json.loads(json.dumps(first))} for pool in sample()["spec"]["pools"]]


FAULTS = [
    pytest.param(
        {"engine": {"name": "tandem", "image": "tandem-worker:nowhere"}},
        *("Stalled", "True", "ImagePullFailed", "tandem-worker:nowhere"),
        id="image that is not there",
    ),
    pytest.param(
        {"model": {**sample()["spec"]["model"], "source": "file:///models/absent"}},
        *("Stalled", "True", "ModelLoadFailed", "/models/absent"),
        id="model that cannot be loaded",
    ),
    pytest.param(
        {"pools": pools(template={"nodeSelector": {"disk": "none"}})},
        *("ScalingLimited", "True", "Unschedulable", "node"),
        id="selector that matches nothing",
    ),
    pytest.param(
        {
            "transfer": {
                "backend": "tcp",
                "rdma": {"mode": "SharedDevice", "resource": "rdma/absent", "count": 1},
                "require": "Any",
            }
        },
        *("ScalingLimited", "True", "Unschedulable", "rdma/absent"),
        id="RDMA resource that no node has",
    ),
    pytest.param(
        {"pools": pools(template={"volumes": [{"name": "host", "hostPath": {"path": "/"}}]})},
        *("Stalled", "True", "TemplateRefused", "hostPath"),
        id="folder of the node",
    ),
]
# Healing brings a resource up from nothing: one of them is tried often.
HEALED = [FAULTS[0], *(pytest.param(*row.values, marks=pytest.mark.slow, id=row.id) for row in FAULTS[1:])]
COLUMNS = ("spec", "kind", "status", "reason", "words")


@pytest.mark.parametrize(COLUMNS, FAULTS)
def test_a_fault_says_what_to_do_and_others_do_not_notice(
    kube: Kube, smollm2: dict, router_url: str, broken: Any, spec: dict, kind: str, status: str, reason: str, words: str
) -> None:
    broken(**spec)
    seen = wait_condition(kube, "broken", kind, status, reason, seconds=120)
    assert words in seen["message"]
    assert condition(resource(kube, "broken"), "Ready")["status"] != "True"
    assert condition(resource(kube, "smollm2"), "Ready")["status"] == "True"
    assert ask(router_url, "smollm2", "Say hello.", tokens=4).text


@pytest.mark.parametrize(COLUMNS, HEALED)
def test_an_edit_heals_a_fault(
    kube: Kube, smollm2: dict, broken: Any, spec: dict, kind: str, status: str, reason: str, words: str
) -> None:
    broken(**spec)
    wait_condition(kube, "broken", kind, status, reason, seconds=120)
    broken()
    found = wait_ready(kube, "broken", seconds=240)
    assert condition(found, "Stalled")["status"] != "True"
    until(f"{reason} is said no more", lambda: condition(resource(kube, "broken"), kind)["reason"] != reason, 120)


def test_prometheus_down_holds_the_ratio_and_serving_goes_on(kube: Kube, smollm2: dict, router_url: str) -> None:
    kube.run("scale", "deployment/prometheus", "-n", "monitoring", "--replicas=0")
    try:
        seen = wait_condition(kube, "smollm2", "MetricsAvailable", "False", seconds=90)
        assert seen["reason"] == "PrometheusUnreachable"
        assert roles(kube, "smollm2") == (1, 2)
        assert condition(resource(kube, "smollm2"), "Ready")["status"] == "True"
        assert ask(router_url, "smollm2", "Say hello.", tokens=4).text
    finally:
        kube.run("scale", "deployment/prometheus", "-n", "monitoring", "--replicas=1")
    until(
        "metrics are back",
        lambda: condition(resource(kube, "smollm2"), "MetricsAvailable")["reason"] != "PrometheusUnreachable",
        90,
    )


def test_the_intent_in_status_is_carried_out_by_flips(kube: Kube, smollm2: dict, router_url: str) -> None:
    """A crash between the status and the children leaves exactly this: a target that the labels lack."""
    before = {p["metadata"]["uid"] for p in workers(kube)}
    aim(kube, prefill=2, decode=1)
    until("two prefill workers", lambda: roles(kube, "smollm2") == (2, 1), 60)
    assert ask(router_url, "smollm2", "Say hello.", tokens=4).text
    aim(kube, prefill=1, decode=2)
    until("two decode workers", lambda: roles(kube, "smollm2") == (1, 2), 60)
    assert {p["metadata"]["uid"] for p in workers(kube)} == before, "a flip restarts nothing"


@pytest.mark.slow
def test_a_flipped_worker_that_is_deleted_is_missed_in_the_role_that_it_had(
    kube: Kube, smollm2: dict, router_url: str
) -> None:
    aim(kube, prefill=2, decode=1)
    try:
        until("two prefill workers", lambda: roles(kube, "smollm2") == (2, 1), 60)
        (flipped,) = strangers(kube)
        kube.run("delete", "pod", flipped, "-n", NAMESPACE, "--wait=true")
        assert ask(router_url, "smollm2", "Say hello.", tokens=4).text, "a pair is left"
        until("the target's roles are back", lambda: roles(kube, "smollm2") == (2, 1), 180)
        assert strangers(kube) not in ([], [flipped])
        assert resource(kube, "smollm2")["status"]["decision"]["target"]["roles"] == {"prefill": 2, "decode": 1}
        assert ask(router_url, "smollm2", "Say hello.", tokens=4).text
    finally:
        aim(kube, prefill=1, decode=2)
        until("two decode workers", lambda: roles(kube, "smollm2") == (1, 2), 180)


def test_drift_is_repaired_and_reported_once(kube: Kube, smollm2: dict) -> None:
    before = drift(kube)
    kube.run("scale", "deployment/smollm2-decode", "-n", NAMESPACE, "--replicas=0")
    until("scaled back", lambda: kube.find("deployment", "smollm2-decode", NAMESPACE)["spec"]["replicas"] == 2, 60)
    kube.run("delete", "service", "smollm2-router", "-n", NAMESPACE)
    until("the Service is back", lambda: kube.find("service", "smollm2-router", NAMESPACE), 60)
    wait_ready(kube, "smollm2", seconds=180)
    until("all workers are back", lambda: roles(kube, "smollm2") == (1, 2), 180)
    assert drift(kube) - before == Counter(
        {
            "spec.replicas of Deployment smollm2-decode was changed, and is as wanted again": 1,
            "Service smollm2-router was deleted, and is made again": 1,
        }
    )


def drift(kube: Kube) -> Counter[str]:
    """What the events say of drift, each as often as it is said."""
    found = [event for event in kube.items("events.events.k8s.io", NAMESPACE) if event["reason"] == "DriftRepaired"]
    return Counter(event["note"] for event in found if event["regarding"]["name"] == "smollm2")


def test_a_foreign_object_of_a_childs_name_is_never_taken(kube: Kube, smollm2: dict, broken: Any) -> None:
    foreign = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "broken-router", "namespace": NAMESPACE, "labels": {"mine": "yes"}},
        "spec": {"ports": [{"port": 1}]},
    }
    kube.apply(yaml.safe_dump(foreign))
    try:
        broken()
        seen = wait_condition(kube, "broken", "Stalled", "True", "NameConflict", seconds=60)
        assert "broken-router" in seen["message"]
        found = kube.find("service", "broken-router", NAMESPACE)
        assert found["metadata"].get("ownerReferences") is None
        assert found["spec"]["ports"][0]["port"] == 1
    finally:
        kube.run("delete", "service", "broken-router", "-n", NAMESPACE, "--ignore-not-found")


def test_a_killed_operator_comes_back_and_changes_nothing(tandem: Cluster, kube: Kube, smollm2: dict) -> None:
    before = (generations(kube), roles(kube, "smollm2"))
    kube.run(
        "delete", "pod", "-n", SYSTEM, "-l", "app.kubernetes.io/name=tandem-operator", "--grace-period=0", "--force"
    )
    kube.run("rollout", "status", "deployment/tandem-operator", "-n", SYSTEM, "--timeout=90s", seconds=100)
    passes_go_by(kube, 3)
    assert (generations(kube), roles(kube, "smollm2")) == before


def test_idle_passes_write_nothing(tandem: Cluster, kube: Kube, smollm2: dict) -> None:
    until("idle", lambda: "NoTraffic" in says(resource(kube, "smollm2")["status"]["decision"]), 120)
    passes_go_by(kube, 2)
    audit, status = Audit(tandem), resource(kube, "smollm2")["status"]
    renewals = lambda: [write for write in audit.writes() if write.resource == "leases"]  # noqa: E731
    passes_go_by(kube, 3)
    until("it renews its Lease", renewals, 60)
    assert resource(kube, "smollm2")["status"] == status
    (operator,) = {write.pod for write in renewals()}
    assert {write.resource for write in audit.by(operator)} == {"leases"}, "and nothing else is written"


def says(decision: dict) -> str:
    return f"{decision['reason']} {decision['message']}"


def workers(kube: Kube) -> list[dict]:
    return kube.items("pods", NAMESPACE, "tandem.dev/resource=smollm2,tandem.dev/component=worker")


def strangers(kube: Kube) -> list[str]:
    """Workers of the decode pool that do prefill."""
    selector = "tandem.dev/resource=smollm2,tandem.dev/pool=decode,tandem.dev/role=prefill"
    return [pod["metadata"]["name"] for pod in staying_pods(kube, NAMESPACE, selector)]


def aim(kube: Kube, prefill: int, decode: int) -> None:
    change = {"status": {"decision": {"target": {"roles": {"prefill": prefill, "decode": decode}}}}}
    kube.run(
        "patch", RESOURCE, "smollm2", "-n", NAMESPACE, "--subresource=status", "--type=merge", "-p", json.dumps(change)
    )


def generations(kube: Kube) -> dict[str, int]:
    return {
        d["metadata"]["name"]: d["metadata"]["generation"]
        for d in kube.items("deployments", NAMESPACE, "tandem.dev/resource=smollm2")
    }


def passes_go_by(kube: Kube, n: int) -> None:
    """Wait until the operator has made `n` more passes over the resource, by its own record."""
    start = passes(kube)
    until(f"{n} passes", lambda: passes(kube) >= start + n, 120, every=1)


def passes(kube: Kube) -> int:
    words = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8080/metrics', timeout=5).read().decode())"
    out = kube.run("exec", "-n", SYSTEM, "deployment/tandem-operator", "--", "python", "-c", words)
    lines = [x for x in out.splitlines() if x.startswith("tandem_operator_reconcile_seconds_count")]
    return int(sum(float(x.split()[-1]) for x in lines))
