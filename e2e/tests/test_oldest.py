"""The oldest Kubernetes that is supported, without DRA: the main path, refusals, a condition in place of errors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.demo.chat import ask
from e2e.harness import cluster as clusters
from e2e.harness.cluster import CONFIG, OLDEST, Cluster
from e2e.harness.kube import REPO, condition
from e2e.harness.ports import free_port
from e2e.harness.world import NAMESPACE, SYSTEM, forwarded, install, resource, sample, wait_condition, wait_settled
from e2e.tests.test_admission import REFUSED, check_refused

DIRECTORY = REPO / "build/oldest"
MINOR = "35"
# DRA cannot be switched off in 1.35: its parts behave as those of 1.34 did, where it could.
GATES = ("DynamicResourceAllocation", "DRAPrioritizedList", "DRASchedulerFilterTimeout", "DRAAdminAccess")
NO_DRA = ["--emulated-version=1.34", f"--feature-gates={','.join(f'{gate}=false' for gate in GATES)}"]
PARTS = ("apiserver", "manager", "scheduler")

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def oldest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A second cluster beside the newest one; nothing of it is left afterwards."""
    if "KUBECONFIG" in os.environ:
        pytest.skip("KUBECONFIG names a cluster: its version is what it is")
    if not OLDEST.exists():
        pytest.skip(f"there is no {OLDEST.relative_to(REPO)}: `make cluster-oldest` builds it")
    config = declared(tmp_path_factory.mktemp("oldest") / "cluster.yaml")
    up = clusters.up(DIRECTORY, free_port(), config, OLDEST)
    try:
        install(up.kube)
        up.kube.run("apply", "--server-side", "-f", "manifests/samples/namespace.yaml")
        yield up
    finally:
        up.down()
    assert clusters.leftovers(DIRECTORY) == []


def declared(path: Path) -> Path:
    """The cluster of all tests, its control plane without DRA."""
    body = yaml.safe_load(CONFIG.read_text())
    flags = dict.fromkeys(PARTS, NO_DRA)
    flags["apiserver"] = [*NO_DRA, "--runtime-config=resource.k8s.io/v1=false"]
    path.write_text(yaml.safe_dump(body | {"flags": flags}))
    return path


def test_it_is_the_oldest(oldest: Cluster) -> None:
    assert oldest.kube.json("version")["serverVersion"]["minor"] == MINOR
    assert "resource.k8s.io" not in oldest.kube.run("api-versions")


@pytest.mark.parametrize(("path", "value", "field", "words"), REFUSED)
def test_it_refuses_what_the_newest_refuses(oldest: Cluster, path: str, value: Any, field: str, words: str) -> None:
    check_refused(oldest.kube, path, value, field, words)


def test_the_sample_serves(oldest: Cluster) -> None:
    oldest.kube.apply(yaml.safe_dump(sample()))
    wait_settled(oldest.kube, "smollm2", seconds=300)
    with forwarded(oldest, NAMESPACE, "smollm2-router", 8000) as url:
        assert ask(url, "smollm2", "What is the capital of France?", tokens=8).text


def test_without_dra_there_is_a_condition_and_no_error(oldest: Cluster) -> None:
    body = yaml.safe_load((REPO / "manifests/samples/rdma/bare-dra.yaml").read_text())
    oldest.kube.apply(yaml.safe_dump(body))
    name = body["metadata"]["name"]
    found = wait_condition(oldest.kube, name, "Stalled", "True", "DRAMissing", seconds=120)
    assert "resource.k8s.io/v1" in found["message"]
    assert condition(resource(oldest.kube, name), "Ready")["status"] == "False"
    (pod,) = oldest.kube.items("pods", SYSTEM, "app.kubernetes.io/name=tandem-operator")
    assert [c["restartCount"] for c in pod["status"]["containerStatuses"]] == [0]
