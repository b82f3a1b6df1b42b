"""The Helm chart on a cluster of its own: installed, upgraded, taken away, and back."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from e2e.harness import cluster as clusters
from e2e.harness.chart import CHART, LOCAL, RELEASE, HelmError, Values, helm, render, text
from e2e.harness.cluster import Cluster
from e2e.harness.kube import REPO, RESOURCE, Kube, condition
from e2e.harness.ports import free_port
from e2e.harness.waiting import GaveUpError, until
from e2e.harness.world import NAMESPACE, SYSTEM, install, resource, sample, wait_settled
from e2e.tests.test_chart import ASKED, called, needs_helm, settings

DIRECTORY = REPO / "build/chart"
CRD = f"CustomResourceDefinition/{RESOURCE}"
# What an uninstall leaves: the CRD (crds.keep) with its API, and the Leases, which are the operators' own.
LEASES = {f"Lease/{place}/tandem-operator" for place in ("kube-system", NAMESPACE)}
LEFT = {CRD, "APIService/v1alpha1.tandem.dev"} | LEASES
RDMA = "tandem-operator-rdma"

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(900), needs_helm]


@pytest.fixture(scope="module")
def kube() -> Iterator[Kube]:
    """A cluster beside the tests': there the operator is the manifests'. Its namespace allows restricted pods alone."""
    if "KUBECONFIG" in os.environ:
        pytest.skip("KUBECONFIG names a cluster: Tandem is on it already")
    up: Cluster = clusters.up(DIRECTORY, free_port())
    try:
        for file in ("base/namespace.yaml", "samples/namespace.yaml"):
            up.kube.run("apply", "--server-side", "-f", f"manifests/{file}")
        yield up.kube
    finally:
        up.down()
    assert clusters.leftovers(DIRECTORY) == []


@pytest.mark.parametrize("values", [values for values, _ in ASKED.values()], ids=ASKED)
def test_the_api_server_takes_every_rendering(kube: Kube, values: Values) -> None:
    items = [item for item in render(values) if item["kind"] != "PodMonitor"]  # a kind that is not served here
    for name in {item["metadata"].get("namespace", SYSTEM) for item in items}:
        kube.apply(yaml.safe_dump({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}))
    said = kube.apply(yaml.safe_dump_all(items), "--dry-run=server")
    assert said.count("serverside-applied (server dry run)") == len(items)


def test_the_api_server_takes_an_overlay_with_another_namespace(kube: Kube) -> None:
    kube.apply("{apiVersion: v1, kind: Namespace, metadata: {name: ml-system}}")
    kube.run("apply", "-k", "manifests/overlays/elsewhere", "--server-side", "--dry-run=server")


def test_a_life(kube: Kube) -> None:
    before = inventory(kube)

    # Installed: the operator runs under the restricted level, and the sample serves.
    release(kube, "install", LOCAL)
    kube.apply(yaml.safe_dump(still()))
    wait_settled(kube, "smollm2", seconds=240)
    workers = uids(kube)
    assert workers

    # Whoever applies the rendering over and over finds nothing to change: `kubectl diff` fails on a difference.
    kube.run("diff", "--server-side", "--field-manager=gitops", "-f", "-", stdin=text(LOCAL))

    # Upgraded with other values: the settings, another replica and more rights are there, and no worker is restarted.
    release(kube, "upgrade", {**LOCAL, "replicas": 2, "fleetGpus": 48, "rdmaSetup": {"enabled": True}})
    found = kube.json("get", "deployment", "tandem-operator", "-n", SYSTEM)
    assert found["status"]["readyReplicas"] == 2
    assert settings([found]).fleet_gpus == 48
    assert kube.find("rolebinding", RDMA, "kube-system")
    wait_settled(kube, "smollm2")
    assert uids(kube) == workers

    # Upgraded to one namespace: those rights are gone and a Role is enough to carry out an edit.
    release(kube, "upgrade", {**LOCAL, "namespace": NAMESPACE})
    assert kube.find("rolebinding", RDMA, "kube-system") is None
    assert kube.run("get", "clusterrole", "tandem-operator", "--ignore-not-found") == ""
    routers(kube, 2)

    # Taken away: CRD, resource and workers stay.
    helm("uninstall", RELEASE, "--namespace", SYSTEM, "--wait", kube=kube, seconds=120)
    assert condition(resource(kube, "smollm2"), "Ready")["status"] == "True"
    assert uids(kube) == workers

    # Back over the CRD that stayed: the operator takes up what serves, and carries out an edit.
    release(kube, "install", LOCAL)
    routers(kube, 1)
    assert uids(kube) == workers

    # Nothing else is left.
    kube.run("delete", RESOURCE, "smollm2", "-n", NAMESPACE)
    until("its children are gone", lambda: kube.items("pods", NAMESPACE) == [], 120)
    helm("uninstall", RELEASE, "--namespace", SYSTEM, "--wait", kube=kube, seconds=120)
    with contextlib.suppress(GaveUpError):  # the garbage collector is on its way
        until("no more is left", lambda: inventory(kube) - before == LEFT, 60, every=2)
    assert inventory(kube) - before == LEFT


def test_an_operator_of_the_manifests_is_taken_over(kube: Kube) -> None:
    install(kube)
    before = kube.json("get", "deployment", "tandem-operator", "-n", SYSTEM)
    with pytest.raises(HelmError, match="invalid ownership metadata"):
        release(kube, "install", LOCAL)
    release(kube, "install", LOCAL, "--take-ownership", "--force-conflicts")
    after = kube.json("get", "deployment", "tandem-operator", "-n", SYSTEM)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["metadata"]["annotations"]["meta.helm.sh/release-name"] == RELEASE


def release(kube: Kube, verb: str, values: Values, *flags: str) -> None:
    where = ("--namespace", SYSTEM, "--wait", "--timeout", "150s")
    helm(verb, RELEASE, str(CHART), *where, *flags, values=values, kube=kube, seconds=180)


def still() -> dict[str, Any]:
    """The sample, its ratio left alone: there is no Prometheus here."""
    body = sample()
    body["spec"]["rebalance"]["mode"] = "Off"
    return body


def routers(kube: Kube, count: int) -> None:
    """An edit, and what the operator makes of it."""
    kube.patch(RESOURCE, "smollm2", NAMESPACE, {"spec": {"router": {"replicas": count}}})
    wait_settled(kube, "smollm2")
    found = kube.json("get", "deployment", "smollm2-router", "-n", NAMESPACE)
    assert found["spec"]["replicas"] == count


def uids(kube: Kube) -> set[str]:
    return {pod["metadata"]["uid"] for pod in kube.items("pods", NAMESPACE, "tandem.dev/component=worker")}


def inventory(kube: Kube) -> set[str]:
    """All objects of the cluster by name, but what tells of the past."""
    kinds = kube.run("api-resources", "--verbs=list", "-o", "name").split()
    asked = ",".join(kind for kind in kinds if not kind.startswith(("events", "componentstatuses")))
    return {called(item) for item in kube.json("get", asked, "-A")["items"]}
