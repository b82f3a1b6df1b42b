"""Events that never come, come late, twice or backwards, on the real API server: the end is as with all in order.

Between the operator and the API server stands a relay. The fault table does the same on an API server in memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.harness.asleep import asleep, brought, children, differences, gone, is_settled
from e2e.harness.killable import environment, none_in_cluster, operator
from e2e.harness.kube import RESOURCE, Kube
from e2e.harness.relay import EVENTS, WAYS, relayed
from e2e.harness.waiting import until
from e2e.harness.world import NAMESPACE, roles

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(600)]

WORKERS = "tandem.dev/resource=smollm2,tandem.dev/component=worker"
BEFORE, AFTER = asleep("vllm:none", 500), asleep("vllm:other", 700)
CARRIED_OUT_S = 90.0  # what no event tells is in the next list


@pytest.fixture(scope="module")
def settings(kube: Kube, smollm2: dict, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """How to start an operator while the cluster's own rests. It lists everything again every ten seconds."""
    with none_in_cluster(kube):
        yield {**environment(kube, tmp_path_factory.mktemp("operator")), "TANDEM_RESYNC_SECONDS": "10"}


@pytest.fixture(scope="module")
def expected(kube: Kube, settings: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The children of an operator that hears everything in order."""
    found = brought(kube, settings, AFTER, tmp_path_factory.mktemp("in-order") / "log")
    gone(kube)
    return found


@pytest.mark.parametrize("way", WAYS)
def test_whatever_is_told_of_a_resources_life_the_end_is_the_same(
    kube: Kube, settings: dict[str, str], expected: dict[str, Any], tmp_path: Path, way: str
) -> None:
    told, log = tmp_path / "told", tmp_path / "log"
    with relayed(settings, way, told) as through, operator(through, 0, log):
        for body in (BEFORE, AFTER):
            kube.apply(yaml.safe_dump(body))
            until("it is carried out", lambda b=body: is_settled(kube, b), CARRIED_OUT_S)
        assert children(kube, "killed") == expected
        kube.run("delete", "service,serviceaccount", "-n", NAMESPACE, "-l", "tandem.dev/resource=killed")
        until("drift is repaired", lambda: differences(kube, AFTER, expected) == [], CARRIED_OUT_S)
        gone(kube)
        kube.apply(yaml.safe_dump(AFTER))
        until("it is made anew", lambda: differences(kube, AFTER, expected) == [], CARRIED_OUT_S)
        gone(kube)
    assert f"{way}: " in told.read_text(), "no event went that way"


# A flip deletes nothing, and is done before anything is listed twice.
@pytest.mark.parametrize("way", [way for way in EVENTS if way != "without_deletions"])
def test_whatever_is_told_of_running_workers_they_flip_and_none_is_lost(
    kube: Kube, settings: dict[str, str], smollm2: dict, tmp_path: Path, way: str
) -> None:
    uids = worker_uids(kube)
    with relayed(settings, way, tmp_path / "told") as through, operator(through, 0, tmp_path / "log"):
        for prefill, decode in ((2, 1), (1, 2)) * 2:
            change = {"status": {"decision": {"target": {"roles": {"prefill": prefill, "decode": decode}}}}}
            words = ("-n", NAMESPACE, "--subresource=status", "--type=merge", "-p", json.dumps(change))
            kube.run("patch", RESOURCE, "smollm2", *words)
            wanted = (prefill, decode)
            until(f"roles are {wanted}", lambda w=wanted: roles(kube, "smollm2") == w, CARRIED_OUT_S)
            assert worker_uids(kube) == uids, "nothing is restarted, and nobody is made or ended"
    assert f"{way}: " in (tmp_path / "told").read_text(), "no event went that way"


def worker_uids(kube: Kube) -> set[str]:
    return {pod["metadata"]["uid"] for pod in kube.items("pods", NAMESPACE, WORKERS)}
