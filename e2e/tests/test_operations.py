"""What a platform team does to a resource that serves: roll out, watch, suspend, resume; on real controllers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e.demo.chat import ask
from e2e.harness.cluster import Cluster
from e2e.harness.kube import RESOURCE, Kube, condition
from e2e.harness.waiting import until
from e2e.harness.world import NAMESPACE, forwarded, if_settled, resource, roles, wait_condition, wait_settled
from e2e.tests.test_modes import asking
from e2e.tests.test_outages import of_workers

WORKERS = "tandem.dev/resource=smollm2,tandem.dev/component=worker"


def edit(kube: Kube, **spec: Any) -> None:
    kube.patch(RESOURCE, "smollm2", NAMESPACE, {"spec": spec})


def revisions(kube: Kube) -> dict[str, set[str]]:
    """Roles that are ready, by revision."""
    found: dict[str, set[str]] = {}
    for pod in kube.items("pods", NAMESPACE, WORKERS):
        labels = pod["metadata"]["labels"]
        ready = found.setdefault(labels["tandem.dev/revision"], set())
        if condition(pod, "Ready")["status"] == "True" and "deletionTimestamp" not in pod["metadata"]:
            ready.add(labels["tandem.dev/role"])
    return found


@pytest.mark.slow
def test_a_day_with_a_resource(tandem: Cluster, kube: Kube, smollm2: dict) -> None:
    (old,) = revisions(kube)

    # Watched: the dashboard is made, the kinds that this cluster does not serve are a condition.
    edit(kube, monitoring={"podMonitor": True, "rules": True, "dashboard": True})
    found = wait_condition(kube, "smollm2", "MonitoringReady", "False", "ApiMissing")
    assert "PodMonitor" in found["message"]
    board = kube.find("configmap", "smollm2-dashboard", NAMESPACE)
    assert board is not None
    assert json.loads(board["data"]["serving-smollm2.json"])["panels"]
    assert condition(resource(kube, "smollm2"), "Ready")["status"] == "True"

    # Rolled out: the one prefill worker and a decode worker go first or last, but the end is one revision.
    edit(kube, engine={"name": "tandem", "args": ["--max-batch=15"]})
    until("the new revision serves alone", lambda: old not in revisions(kube) and len(revisions(kube)) == 1, 300)
    wait_settled(kube, "smollm2", seconds=120)
    assert roles(kube, "smollm2") == (1, 2)
    paused = [d for d in kube.items("deployments", NAMESPACE) if d["spec"].get("paused")]
    assert paused == []

    # Suspended and back: no pods, then the same roles and an answer.
    edit(kube, suspend=True, monitoring={"podMonitor": False, "rules": False, "dashboard": False})
    wait_condition(kube, "smollm2", "Ready", "True", "Suspended", seconds=120)
    assert kube.items("pods", NAMESPACE, "tandem.dev/resource=smollm2") == []
    assert kube.find("configmap", "smollm2-dashboard", NAMESPACE) is None
    edit(kube, suspend=False, engine=smollm2["spec"]["engine"])
    wait_condition(kube, "smollm2", "Ready", "True", "Serving", seconds=180)
    wait_settled(kube, "smollm2", seconds=120)
    assert roles(kube, "smollm2") == (1, 2)
    with forwarded(tandem, NAMESPACE, "smollm2-router", 8000) as url:
        assert ask(url, "smollm2", "What is the capital of France?", tokens=8).text


@pytest.mark.slow
def test_a_rollout_that_cannot_start_waits_and_a_revert_ends_it(kube: Kube, smollm2: dict, router_url: str) -> None:
    """One decode worker goes for its successor, which never comes; the pair that is left serves until the revert."""
    engine, before = smollm2["spec"]["engine"], of_workers(kube)
    with asking(router_url) as wrong:
        edit(kube, engine=engine | {"image": "tandem-worker:nowhere"})
        stalled = until("the rollout is paused", lambda: paused_while_serving(kube), 120)
        assert "tandem-worker:nowhere" in stalled["message"]
        assert "revert" in stalled["message"]
        edit(kube, engine=engine)
        until("the rollout is over", lambda: settled_while_serving(kube), 180)
    assert wrong == [], "no request is lost"
    after = of_workers(kube)
    assert roles(kube, "smollm2") == (1, 2)
    assert len([name for name, who in before.items() if after.get(name) == who]) == 2, "no serving pod was restarted"
    assert condition(resource(kube, "smollm2"), "Stalled")["status"] != "True"


def paused_while_serving(kube: Kube) -> dict[str, Any] | None:
    """The condition that says so, once it does; Ready stays True meanwhile."""
    seen = resource(kube, "smollm2")
    assert condition(seen, "Ready")["status"] == "True"
    found = condition(seen, "Stalled")
    return found if found["reason"] == "RolloutPaused" else None


def settled_while_serving(kube: Kube) -> dict[str, Any] | None:
    """The resource, once nothing is left to do; Ready stays True meanwhile."""
    assert condition(resource(kube, "smollm2"), "Ready")["status"] == "True"
    return if_settled(kube, "smollm2", NAMESPACE)
