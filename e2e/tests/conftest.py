"""The sample resource, serving, for the tests on the cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from e2e.harness.cluster import Cluster
from e2e.harness.world import NAMESPACE, forwarded, sample, wait_settled


@pytest.fixture(scope="session")
def smollm2(tandem: Cluster) -> dict:
    """The sample resource, serving, its ratio left alone (a test that wants the planner asks for it)."""
    body = sample()
    body["spec"]["rebalance"]["mode"] = "Off"
    tandem.kube.apply(yaml.safe_dump(body))
    return wait_settled(tandem.kube, "smollm2", seconds=180)


@pytest.fixture
def router_url(tandem: Cluster, smollm2: dict) -> Iterator[str]:
    """A way to the router of now: other tests have it replaced, and a port-forward ends with its pod."""
    wait_settled(tandem.kube, "smollm2", seconds=180)
    with forwarded(tandem, NAMESPACE, "smollm2-router", 8000) as url:
        yield url
