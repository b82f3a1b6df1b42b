"""Another version of the operator, or of the CRD, on what is there: no pod is restarted, nothing is lost."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.harness import pod_templates
from e2e.tables.fields import base, changes, settled
from e2e.tables.memory import DEPLOYMENTS, PODS, Case, copied
from e2e.tables.paths import put
from tandem_operator.loop.settings import Settings


def older_digest(case: Case) -> None:
    for item in case.kube.of(DEPLOYMENTS):
        case.kube.store(DEPLOYMENTS, put(copied(item), "metadata.annotations", {"tandem.dev/applied": "of version N"}))


def no_digest(case: Case) -> None:
    for item in case.kube.of(DEPLOYMENTS):
        case.kube.store(DEPLOYMENTS, put(copied(item), "metadata.annotations", {}))


def other_deployment_fields(case: Case) -> None:
    for item in case.kube.of(DEPLOYMENTS):
        changed = put(put(copied(item), "spec.revisionHistoryLimit", 10), "spec.minReadySeconds", 5)
        case.kube.store(DEPLOYMENTS, put(changed, "metadata.labels.former", "yes"))


def newer_status(case: Case) -> None:
    """A newer operator wrote it, and was rolled back."""
    status = copied(case.body()["status"])
    status["decision"]["confidence"] = "high"
    status["fleet"] = {"share": 3}
    status["conditions"].append({**status["conditions"][0], "type": "Forecast", "reason": "Rising"})
    case.kube.store(case.plural, {**case.body(), "status": status})


def newer_spec(case: Case) -> None:
    """A newer CRD stored fields that this version does not know."""
    case.edit(put(put(copied(case.body()["spec"]), "forecast", {"days": 7}), "model.shards", 4))


def older_status(case: Case) -> None:
    """The first version wrote no more than a decision."""
    status = case.body()["status"]
    kept = {name: status["decision"][name] for name in ("id", "target", "action", "reason", "message", "at")}
    case.kube.store(case.plural, {**case.body(), "status": {"decision": kept}})


@pytest.mark.parametrize(
    "found", [older_digest, no_digest, other_deployment_fields, newer_status, newer_spec, older_status]
)
async def test_no_pod_is_restarted(found: Any) -> None:
    case = Case(base())
    expected, _ = await settled(case)
    pods = uids(case)
    found(case)
    await case.restart()
    after, words = await settled(case)
    assert words == ""
    assert uids(case) == pods
    assert changes(expected, after) == ()
    before = len(case.kube.writes)
    await case.one_pass()
    assert len(case.kube.writes) == before


async def test_another_default_image_is_a_change_of_the_pods() -> None:
    """What really changes the template is rolled out: version N+1 with another worker image."""
    case = Case(base())
    await settled(case)
    pods = uids(case)
    case.settings = Settings(worker_image="tandem-worker:next")
    await case.restart()
    await settled(case)
    images = {d["spec"]["template"]["spec"]["containers"][0]["image"] for d in case.kube.of(DEPLOYMENTS)}
    assert images == {"tandem-worker:next", "tandem-router:latest"}
    routers = {pod for pod in pods if "router" in pod[0]}
    assert pods & uids(case) == routers, "workers are other pods, routers the same"


def test_pods_are_made_as_they_were_when_last_recorded() -> None:
    words = (
        f"pods restart on upgrade: re-record deliberately with `{pod_templates.COMMAND}`, and say so in the changelog"
    )
    assert pod_templates.now() == pod_templates.recorded(), words


def uids(case: Case) -> set[tuple[str, str]]:
    return {(pod["metadata"]["name"], pod["metadata"]["uid"]) for pod in case.kube.of(PODS)}
