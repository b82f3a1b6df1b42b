"""A hub's model on a real API server: the Job that pulls it is taken, and no worker starts before it has ended."""

from __future__ import annotations

import copy

import yaml

from e2e.harness.cluster import Cluster
from e2e.harness.kube import condition
from e2e.harness.waiting import until
from e2e.harness.world import NAMESPACE, sample


def test_a_shared_cache_is_filled_before_any_worker_starts(tandem: Cluster) -> None:
    kube = tandem.kube
    body = copy.deepcopy(sample())
    body["metadata"]["name"] = "pulled"
    body["spec"]["model"] |= {
        "source": "hf://owner/name",
        "revision": "r1",
        "authSecretRef": {"name": "hub-token"},
        "cache": {"persistentVolumeClaim": "models"},
    }
    kube.apply(yaml.safe_dump(body))
    try:
        until(
            "the model is being pulled",
            lambda: condition(kube.find("di", "pulled", NAMESPACE), "Reconciling")["reason"] == "PullingModel",
            60,
        )
        (job,) = kube.items("jobs", NAMESPACE, "tandem.dev/resource=pulled")
        assert job["metadata"]["name"].startswith("pulled-model-")
        assert job["spec"]["podFailurePolicy"]["rules"][0]["action"] == "FailJob"
        assert kube.items("deployments", NAMESPACE, "tandem.dev/resource=pulled") == []
    finally:
        kube.run("delete", "di", "pulled", "-n", NAMESPACE, "--wait=false")
    until("the Job is gone with it", lambda: not kube.items("jobs", NAMESPACE, "tandem.dev/resource=pulled"), 60)
