"""The API server in trouble, on the real one: away, back with its history compacted, rejecting, refusing, full; a node
that is gone, an API that is not served. Serving goes on, nothing is restarted, and what was asked for is carried out
after.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from e2e.demo.chat import ask
from e2e.harness.cluster import Cluster
from e2e.harness.edits import edit, follows_an_edit, router_generation
from e2e.harness.kube import RESOURCE, Kube, condition
from e2e.harness.parts import directory_of, frozen, inside, process_in_pod, process_of, start_again
from e2e.harness.waiting import until
from e2e.harness.world import NAMESPACE, SYSTEM, resource, roles, sample, the_pod, wait_condition, wait_settled

OPERATOR = "app.kubernetes.io/name=tandem-operator"
ROUTER = "tandem.dev/resource=smollm2,tandem.dev/component=router"
WORKERS = "tandem.dev/resource=smollm2,tandem.dev/component=worker"
ETCD = "http://127.0.0.1:2379/v3/kv"
BACK_S = 300.0  # an operator that lost its Lease begins anew, at worst after the kubelet's back-off


@pytest.fixture(autouse=True)
def at_work(kube: Kube, tandem: Cluster) -> None:
    """The operator has come back from the outage before."""
    the_pod(kube, SYSTEM, OPERATOR, BACK_S)


@pytest.mark.parametrize("seconds", [20, pytest.param(300, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])])
def test_the_api_server_is_away(tandem: Cluster, kube: Kube, smollm2: dict, seconds: int) -> None:
    before, router = of_workers(kube), the_pod(kube, NAMESPACE, ROUTER)["status"]["podIP"]
    end = time.monotonic() + seconds

    def served_until_the_end() -> bool:
        assert served(tandem, router)
        return time.monotonic() > end

    with frozen(process_of(directory_of(tandem), "apiserver")):
        until("the outage is over", served_until_the_end, seconds + 120, every=2)
    until("the API server answers", lambda: answers(kube), 60)
    follows_an_edit(kube, BACK_S)
    wait_settled(kube, "smollm2", seconds=120)
    assert of_workers(kube) == before, "no worker was restarted or made anew"


@pytest.mark.slow
def test_what_changed_while_nobody_watched_and_history_was_compacted_is_seen(
    tandem: Cluster, kube: Kube, smollm2: dict
) -> None:
    """The operator sleeps; the API server comes back without the history that its watches would go on from (410)."""
    operator = the_pod(kube, SYSTEM, OPERATOR)
    with frozen(process_in_pod(operator, "tandem-operator")):
        compact(tandem)
        start_again(tandem, "apiserver")
        until("the API server answers", lambda: answers(kube), 60)
        kube.run("delete", "service", "smollm2-workers", "-n", NAMESPACE)
        kube.run(
            "label", "poddisruptionbudget", "-n", NAMESPACE, "smollm2-router", "tandem.dev/resource=lost", "--overwrite"
        )
        kube.run("delete", "poddisruptionbudget", "-n", NAMESPACE, "smollm2-role-decode")
    # Well before the next resync, which would find it, too.
    until("the Service is back", lambda: kube.find("service", "smollm2-workers", NAMESPACE), 120)
    until("the budget is back", lambda: kube.find("poddisruptionbudget", "smollm2-role-decode", NAMESPACE), 120)
    until("the label is back", lambda: label_of(kube, "poddisruptionbudget", "smollm2-router") == "smollm2", 120)
    follows_an_edit(kube, 60)


@contextlib.contextmanager
def few_seats(kube: Kube) -> Iterator[None]:
    """The API server gives the operator's account none of its seats, and one place to wait for one."""
    limited = {"nominalConcurrencyShares": 0, "lendablePercent": 0, "borrowingLimitPercent": 0}
    everything = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "clusterScope": True, "namespaces": ["*"]}
    account = {"name": "tandem-operator", "namespace": SYSTEM}
    rule = {"subjects": [{"kind": "ServiceAccount", "serviceAccount": account}], "resourceRules": [everything]}
    response = {"type": "Queue", "queuing": {"queues": 1, "handSize": 1, "queueLengthLimit": 1}}
    level = {"type": "Limited", "limited": limited | {"limitResponse": response}}
    schema = {
        "matchingPrecedence": 2,  # 1 is the exempt schema's
        "priorityLevelConfiguration": {"name": "few-seats"},
        "distinguisherMethod": {"type": "ByUser"},
        "rules": [rule],
    }
    try:
        for kind, spec in (("PriorityLevelConfiguration", level), ("FlowSchema", schema)):
            about = {"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": kind, "metadata": {"name": "few-seats"}}
            kube.apply(yaml.safe_dump(about | {"spec": spec}))
        yield
    finally:
        kube.run("delete", "flowschema,prioritylevelconfiguration", "few-seats", "--ignore-not-found")


@pytest.mark.slow
def test_priority_and_fairness_rejects(kube: Kube, smollm2: dict) -> None:
    """A queue of one, and nobody serves it. Without a queue a lone request passes even a level of no seats."""
    before, generation, known = of_workers(kube), router_generation(kube), rejected(kube)
    with few_seats(kube):
        until("the API server rejects the operator", lambda: rejected(kube) > known, 120)
        known = rejected(kube)
        edit(kube)
        until("it does so again", lambda: rejected(kube) > known, 120)
        assert router_generation(kube) == generation
        assert condition(resource(kube, "smollm2"), "Ready")["status"] == "True"
    until("the edit is carried out", lambda: router_generation(kube) > generation, BACK_S)
    assert of_workers(kube) == before


@pytest.mark.slow
def test_a_webhook_that_cannot_be_asked(kube: Kube, smollm2: dict) -> None:
    """It is to judge Deployments and fails closed, as a policy engine does while it is being upgraded."""
    hook = {
        "name": "nobody.tandem.test",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [{"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["*"], "resources": ["deployments"]}],
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 1,
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}},
    }
    about = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
    generation = router_generation(kube)
    kube.apply(yaml.safe_dump(about | {"metadata": {"name": "nobody"}, "webhooks": [hook]}))
    try:
        edit(kube)
        seen = wait_condition(kube, "smollm2", "Reconciling", "True", "Retrying", seconds=60)
        assert "nobody.tandem.test" in seen["message"]
        assert condition(resource(kube, "smollm2"), "Ready")["status"] == "True"
    finally:
        kube.run("delete", "validatingwebhookconfiguration", "nobody")
    until("the edit is carried out", lambda: router_generation(kube) > generation, 120)
    wait_settled(kube, "smollm2", seconds=60)


@pytest.mark.slow
def test_quota_is_exhausted(kube: Kube, smollm2: dict, router_url: str) -> None:
    pods = len(kube.items("pods", NAMESPACE))
    about = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "full", "namespace": NAMESPACE}}
    kube.apply(yaml.safe_dump(about | {"spec": {"hard": {"pods": str(pods)}}}))
    try:
        kube.apply(yaml.safe_dump(sample("more")))
        seen = wait_condition(kube, "more", "ScalingLimited", "True", "PodsRefused", seconds=60)
        assert "exceeded quota" in seen["message"]
        assert ask(router_url, "smollm2", "Say hello.", tokens=4).text
        kube.run("delete", "resourcequota", "full", "-n", NAMESPACE)
        until("its pods come", lambda: kube.items("pods", NAMESPACE, "tandem.dev/resource=more"), 180)
        wait_condition(kube, "more", "ScalingLimited", "False", seconds=180)
    finally:
        kube.run("delete", "resourcequota", "full", "-n", NAMESPACE, "--ignore-not-found")
        kube.run("delete", RESOURCE, "more", "-n", NAMESPACE, "--ignore-not-found", "--wait=true")


@pytest.mark.slow
def test_a_new_resource_begins_within_a_quota_of_accelerators(kube: Kube, smollm2: dict) -> None:
    """Six workers are wanted to begin with, and the namespace has two accelerators left: one worker a role."""
    key, place = "requests.nvidia.com/gpu", ("-n", NAMESPACE)
    about = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus", "namespace": NAMESPACE}}

    def limit(most: int) -> int:
        """The quota, once it is counted: how many are in use."""
        kube.apply(yaml.safe_dump(about | {"spec": {"hard": {key: str(most)}}}))
        found = until("it is counted", lambda: counted(kube, "gpus", key, str(most)), 30)
        return int(found["used"][key])

    body = sample("bounded", rebalance={"mode": "Auto"})
    for pool in body["spec"]["pools"]:
        pool |= {"replicas": {"min": 1, "max": 4, "initial": 3}, "template": {"nodeSelector": {"walked": "nowhere"}}}
    others = "tandem.dev/component=worker,tandem.dev/resource!=smollm2"  # of tests before, on their way out
    until("nobody gives accelerators back any more", lambda: not kube.items("pods", NAMESPACE, others), 120)
    try:
        limit(limit(999) + 2)
        kube.apply(yaml.safe_dump(body))
        seen = until("its pods are made", lambda: made(kube, "bounded", 2), 60)
        assert seen["status"]["decision"]["target"]["pools"] == {"prefill": 1, "decode": 1}
        assert condition(seen, "ScalingLimited")["reason"] != "PodsRefused"
    finally:
        kube.run("delete", "resourcequota", "gpus", *place, "--ignore-not-found")
        kube.run("delete", RESOURCE, "bounded", *place, "--ignore-not-found", "--wait=true")


def counted(kube: Kube, name: str, key: str, hard: str) -> dict[str, Any] | None:
    """A quota's status, once its controller has seen it as it is."""
    status = (kube.find("resourcequota", name, NAMESPACE) or {}).get("status") or {}
    return status if (status.get("hard") or {}).get(key) == hard and key in (status.get("used") or {}) else None


def made(kube: Kube, name: str, count: int) -> dict[str, Any] | None:
    """The resource, once it has so many worker pods."""
    pods = kube.items("pods", NAMESPACE, f"tandem.dev/resource={name},tandem.dev/component=worker")
    return resource(kube, name) if len(pods) == count else None


@pytest.mark.slow
def test_a_node_is_gone_and_comes_back(tandem: Cluster, kube: Kube, smollm2: dict) -> None:
    before = {name: uid for name, (uid, _) in of_workers(kube).items()}
    tandem.command("node", "kill", "h200-0")
    try:
        seen = wait_condition(kube, "smollm2", "Ready", "False", seconds=120)
        assert "none of decode" in seen["message"]
        assert resource(kube, "smollm2")["status"]["decision"]["target"]["pools"] == {"prefill": 1, "decode": 2}
    finally:
        tandem.command("node", "add", "h200-0")
    until("all workers are back", lambda: roles(kube, "smollm2") == (1, 2), 240)
    wait_settled(kube, "smollm2", seconds=120)
    assert {name: uid for name, (uid, _) in of_workers(kube).items()} == before, "the same pods, started again"


def test_an_api_that_the_cluster_does_not_serve_is_a_condition(kube: Kube, smollm2: dict) -> None:
    """No LeaderWorkerSet here: a replica that spans nodes cannot be made, and the resource says what would help."""
    rdma = sample()["spec"]["transfer"]["rdma"]
    engine, transfer = {"name": "vllm", "image": "vllm:none"}, {"backend": "nixl", "rdma": rdma, "require": "Any"}
    body = sample("spread", engine=engine, transfer=transfer, rebalance={"mode": "Off"})
    for pool in body["spec"]["pools"]:
        pool["parallelism"] = {"tensor": 16}
    kube.apply(yaml.safe_dump(body))
    try:
        seen = wait_condition(kube, "spread", "Stalled", "True", "LeaderWorkerSetMissing", seconds=60)
        assert "install it" in seen["message"]
        assert kube.find("service", "spread-router", NAMESPACE), "what can be made is made"
        assert condition(resource(kube, "smollm2"), "Ready")["status"] == "True"
    finally:
        kube.run("delete", RESOURCE, "spread", "-n", NAMESPACE, "--wait=true")


def of_workers(kube: Kube) -> dict[str, tuple[str, int]]:
    """Uid and restarts of each worker pod."""
    return {
        pod["metadata"]["name"]: (
            pod["metadata"]["uid"],
            sum(status["restartCount"] for status in pod["status"]["containerStatuses"]),
        )
        for pod in kube.items("pods", NAMESPACE, WORKERS)
    }


def served(cluster: Cluster, router: str) -> bool:
    """A chat by the router's own address: `kubectl port-forward` would ask the API server."""
    body = {"model": "smollm2", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4}
    url = f"http://{router}:8000/v1/chat/completions"
    answer = posted(cluster, url, body)
    return bool(answer["choices"][0]["message"]["content"])


def posted(cluster: Cluster, url: str, body: dict[str, Any]) -> Any:
    """JSON there and back, from inside the cluster's network."""
    words = (
        "import sys, urllib.request as u;"
        "r = u.Request(sys.argv[1], sys.argv[2].encode(), {'Content-Type': 'application/json'});"
        "print(u.urlopen(r, timeout=25).read().decode())"
    )
    return json.loads(inside(cluster, "python3", "-c", words, url, json.dumps(body)))


def compact(cluster: Cluster) -> None:
    """A write of nobody's, so that every list is older than it; then etcd forgets all before."""
    revision = posted(cluster, f"{ETCD}/put", {"key": "bm9ib2R5", "value": "MQ=="})["header"]["revision"]
    posted(cluster, f"{ETCD}/compaction", {"revision": revision, "physical": True})


def answers(kube: Kube) -> bool:
    return "ok" in kube.run("get", "--raw", "/readyz", "--request-timeout=5s", check=False)


def label_of(kube: Kube, kind: str, name: str) -> str:
    found = kube.find(kind, name, NAMESPACE) or {"metadata": {}}
    return str(found["metadata"].get("labels", {}).get("tandem.dev/resource", ""))


def rejected(kube: Kube) -> float:
    """Requests of the operator's that the API server has rejected."""
    lines = kube.run("get", "--raw", "/metrics").splitlines()
    name = "apiserver_flowcontrol_rejected_requests_total{"
    return sum(float(x.split()[-1]) for x in lines if x.startswith(name) and 'flow_schema="few-seats"' in x)
