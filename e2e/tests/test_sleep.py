"""Scale to zero on a real cluster: workers go; a request that comes then is held, wakes them, and is answered."""

from __future__ import annotations

import copy
import json
import urllib.request
from typing import Any

import pytest
import yaml

from e2e.harness.cluster import Cluster
from e2e.harness.kube import Kube, condition
from e2e.harness.waiting import until
from e2e.harness.world import NAMESPACE, forwarded, resource, sample, wait_condition, wait_settled

NAME = "drowsy"
WORKERS = f"tandem.dev/resource={NAME},tandem.dev/component=worker"
HOLD_S = 400


def body() -> dict[str, Any]:
    """One worker for each role, asleep after half a minute without a request."""
    found = copy.deepcopy(sample(NAME))
    for pool in found["spec"]["pools"]:
        pool["replicas"] = {"min": 1, "max": 1}
    found["spec"]["scaleToZero"] = {"afterSeconds": 30, "holdSeconds": HOLD_S}
    return found


def answer(url: str) -> dict[str, Any]:
    """One request, however long it is held."""
    asked = {"model": "smollm2", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(asked).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=HOLD_S) as response:
        found: dict[str, Any] = json.load(response)
    return found


@pytest.mark.slow
def test_a_request_wakes_a_resource_that_sleeps(tandem: Cluster, kube: Kube) -> None:
    kube.apply(yaml.safe_dump(body()))
    try:
        target = wait_settled(kube, NAME, seconds=240)["status"]["decision"]["target"]
        found = wait_condition(kube, NAME, "Ready", "True", "Asleep", seconds=240)
        assert "a start takes about" in found["message"]
        assert kube.items("pods", NAMESPACE, WORKERS) == []
        assert condition(resource(kube, NAME), "Reconciling")["status"] != "True", "done, as GitOps tools see it"
        with forwarded(tandem, NAMESPACE, f"{NAME}-router", 8000) as url:
            assert answer(url)["usage"]["completion_tokens"] > 0
        seen = resource(kube, NAME)
        assert seen is not None
        assert seen["status"]["sleep"]["asleep"] is False
        assert seen["status"]["decision"]["target"] == target
        until("both roles are there again", lambda: len(kube.items("pods", NAMESPACE, WORKERS)) == 2, 60)
        reasons = {event.get("reason") for event in kube.items("events.events.k8s.io", NAMESPACE)}
        assert {"FellAsleep", "WokenUp"} <= reasons
    finally:
        kube.run("delete", "di", NAME, "-n", NAMESPACE, "--wait=false")
