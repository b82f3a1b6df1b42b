"""Resources of the CRD's own schema, applied to the real API server: each is carried out or refused in words.

Then each is edited into another, and its children are those of one that was so from the start. All are suspended, so
that no pod is made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings

from e2e.harness.asleep import children
from e2e.harness.audit import Audit
from e2e.harness.cluster import Cluster
from e2e.harness.kube import RESOURCE, Kube, KubectlError, condition
from e2e.harness.waiting import until
from e2e.harness.world import SYSTEM, wait_settled
from e2e.tables.memory import copied
from e2e.tests.test_faults import passes_go_by
from e2e.tests.test_fuzz import resources

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(900)]

COUNT = 16  # in each namespace
DRAWN = 8 * COUNT
MOVED, FRESH = "fuzz-m", "fuzz-f"
CARRIED_OUT_S = 180.0
OF_UID = re.compile(r"tandem\.dev/(template|revision)$")  # digests of all of it, the transfer key's name too
Object = dict[str, Any]
KIND = "DisaggregatedInference"


def drawn() -> list[Object]:
    """Specs that the rules accept, those that set most of all that hypothesis finds; the same ones each time."""
    found: list[Object] = []

    @given(resources(chosen=False))
    @settings(max_examples=DRAWN, phases=[Phase.generate], derandomize=True, suppress_health_check=list(HealthCheck))
    def draw(body: Object) -> None:
        found.append({**copied(body)["spec"], "suspend": True})

    draw()
    found = [spec for spec in found if not spec["model"]["source"].startswith("hf:")]  # from nowhere
    return sorted(found, key=lambda spec: len(str(spec)), reverse=True)[: 2 * COUNT]


@pytest.fixture(scope="module")
def fuzzed(tandem: Cluster, kube: Kube, smollm2: dict) -> Iterator[list[tuple[str, Object]]]:
    """Pairs of resources in two namespaces: names, and the spec of the one that stays as it is."""
    for namespace in (MOVED, FRESH):
        kube.apply(yaml.safe_dump({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}))
    specs = iter(drawn())
    pairs = []
    try:
        for number, (one, other) in enumerate(zip(specs, specs, strict=False)):
            name = f"fuzz-{number:02}"
            taken = [applied(kube, MOVED, name, one), applied(kube, FRESH, name, other)]
            pairs += [(name, other)] if all(taken) else []
        yield pairs
    finally:
        for namespace in (MOVED, FRESH):
            kube.run("delete", RESOURCE, "--all", "-n", namespace, "--wait=true", seconds=120)
            kube.run("delete", "namespace", namespace, "--wait=false")
        wait_settled(kube, "smollm2")


def applied(kube: Kube, namespace: str, name: str, spec: Object) -> bool:
    """Apply it; False where the API server refuses it."""
    about = {"apiVersion": "tandem.dev/v1alpha1", "kind": KIND, "metadata": {"name": name, "namespace": namespace}}
    try:
        kube.apply(yaml.safe_dump({**about, "spec": spec}))
    except KubectlError as error:
        if "is invalid" not in str(error):
            raise
        return False
    return True


def unfinished(kube: Kube) -> list[str]:
    """Resources that are neither carried out nor refused yet."""
    found = [item for namespace in (MOVED, FRESH) for item in kube.items(RESOURCE, namespace)]
    return [item["metadata"]["name"] for item in found if not is_done(item)]


def is_done(item: Object) -> bool:
    """Has it a verdict on its newest generation, and is nothing under way?"""
    current = (item.get("status") or {}).get("observedGeneration") == item["metadata"]["generation"]
    said = condition(item, "Ready")["reason"] or condition(item, "Stalled")["reason"]
    return current and bool(said) and condition(item, "Reconciling")["status"] != "True"


def operators(kube: Kube) -> list[tuple[str, int]]:
    """The operator's pods and how often their containers were started again."""
    pods = kube.items("pods", SYSTEM, "app.kubernetes.io/name=tandem-operator")
    return [(pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"]) for pod in pods]


def shape(kube: Kube, namespace: str, name: str) -> Object:
    """Its children and verdict, as they would be in any namespace."""
    item = kube.find(RESOURCE, name, namespace)
    verdict = {kind: condition(item, kind)["reason"] for kind in ("Ready", "Stalled")}
    found = children(kube, name, namespace)
    return {**{at: anywhere(value, namespace) for at, value in found.items() if not OF_UID.search(at)}, **verdict}


def anywhere(value: Any, namespace: str) -> Any:
    """The value without the namespace."""
    return value.replace(namespace, "N") if isinstance(value, str) else value


def test_each_is_carried_out_or_refused_and_then_edited_into_another(
    tandem: Cluster, kube: Kube, fuzzed: list[tuple[str, Object]]
) -> None:
    assert len(fuzzed) >= COUNT // 2, "most are taken"
    before = operators(kube)
    until("each has a verdict", lambda: not unfinished(kube), CARRIED_OUT_S)
    for name, spec in fuzzed:
        assert applied(kube, MOVED, name, spec), "what it is in one namespace it is in another"
    until("each has another", lambda: not unfinished(kube), CARRIED_OUT_S)
    until("nothing is left to write", lambda: is_quiet(tandem, kube), CARRIED_OUT_S)

    carried_out = [name for name, _ in fuzzed if not is_refused(kube, name)]
    assert len(carried_out) >= len(fuzzed) // 2
    assert {name: differing(kube, name) for name in carried_out if differing(kube, name)} == {}
    assert operators(kube) == before, "the operator was never started again"
    assert not re.search(r"Traceback", kube.run("logs", "-n", SYSTEM, "deployment/tandem-operator", "--tail=-1"))


def differing(kube: Kube, name: str) -> list[str]:
    """Where the one that was edited is not as the one that began so."""
    moved, fresh = shape(kube, MOVED, name), shape(kube, FRESH, name)
    return [at for at in sorted(moved.keys() | fresh.keys()) if moved.get(at) != fresh.get(at)]


def is_refused(kube: Kube, name: str) -> bool:
    """Is it refused, where it began so? Then its children are still what they were before, in the other namespace."""
    return condition(kube.find(RESOURCE, name, FRESH), "Stalled")["status"] == "True"


def is_quiet(tandem: Cluster, kube: Kube) -> bool:
    """A round of passes over all of them with no write that the API server took."""
    audit = Audit(tandem)
    passes_go_by(kube, 2 * COUNT + 1)
    return not [write for write in audit.writes() if write.namespace in (MOVED, FRESH) and write.code < 300]
