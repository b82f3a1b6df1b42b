"""Another revision on real controllers, two workers of each role: what is there at every moment in between."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from e2e.harness.kube import RESOURCE, Kube, condition
from e2e.harness.moments import kstatus, moments, unclean
from e2e.harness.waiting import until
from e2e.harness.world import NAMESPACE, if_settled, roles, wait_settled
from e2e.tests.test_modes import asking
from e2e.tests.test_operations import WORKERS, edit, revisions

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(900)]

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={WORKERS.replace('=', '%3D').replace(',', '%2C')}"
RESOURCES = (
    f"/apis/tandem.dev/v1alpha1/namespaces/{NAMESPACE}/disaggregatedinferences?fieldSelector=metadata.name%3Dsmollm2"
)
Object = dict[str, Any]


@pytest.fixture
def four(kube: Kube, smollm2: dict) -> Iterator[None]:
    """Two workers of each role; afterwards all is as in the sample again."""
    rebalance = smollm2["spec"]["rebalance"]
    two = {"min": 2, "max": 2, "initial": 2}
    pools = [{**pool, "replicas": two} for pool in smollm2["spec"]["pools"]]
    edit(kube, pools=pools, rebalance=rebalance | {"budget": {"gpus": 4}})
    try:
        until("two of each role", lambda: roles(kube, "smollm2") == (2, 2) and settled(kube), 240)
        yield
    finally:
        edit(kube, pools=smollm2["spec"]["pools"], engine=smollm2["spec"]["engine"], rebalance=rebalance)
        until("all is as before", lambda: roles(kube, "smollm2") == (1, 2) and settled(kube), 300)


def settled(kube: Kube) -> Object | None:
    return if_settled(kube, "smollm2", NAMESPACE)


def test_a_pair_serves_at_every_moment_and_no_more_are_away_than_may_be(
    kube: Kube, four: None, smollm2: dict, router_url: str
) -> None:
    (old,) = revisions(kube)
    with moments(kube, PODS) as pods, moments(kube, RESOURCES) as seen, asking(router_url) as wrong:
        edit(kube, engine=smollm2["spec"]["engine"] | {"args": ["--max-batch=15"]})
        until("the new revision serves alone", lambda: old not in revisions(kube) and len(revisions(kube)) == 1, 400)
        done = wait_settled(kube, "smollm2", seconds=120)
    assert wrong == [], "no request is lost"
    assert roles(kube, "smollm2") == (2, 2)

    ready = list(serving(pods))
    assert all(pairs(moment) for moment in ready), "prefill and decode of one revision are there throughout"
    assert min(len(moment) for moment in ready) >= 4 - 1, "maxUnavailable: 1"

    edited = done["metadata"]["generation"]
    meanwhile = [item for item in seen if item["metadata"]["generation"] == edited]
    assert [words for item in seen for words in unclean(item)] == []
    answers = [kstatus(item) for item in meanwhile]
    assert answers.count("Current") >= 1
    assert set(answers[: answers.index("Current")]) == {"InProgress"}
    assert set(answers[answers.index("Current") :]) == {"Current"}, "done once, and then done"


def serving(pods: list[Object]) -> Iterator[dict[str, tuple[str, str]]]:
    """At each moment (revision, role) of the pods that are ready and stay, by name; from when all four were told."""
    there: dict[str, tuple[str, str]] = {}
    began = False
    for pod in pods:
        metadata = pod["metadata"]
        there.pop(metadata["name"], None)
        stays = pod["event"] != "DELETED" and "deletionTimestamp" not in metadata
        if stays and condition(pod, "Ready")["status"] == "True":
            labels = metadata["labels"]
            there[metadata["name"]] = labels["tandem.dev/revision"], labels["tandem.dev/role"]
        began = began or len(there) == 4
        if began:
            yield dict(there)


def pairs(moment: dict[str, tuple[str, str]]) -> list[str]:
    """Revisions of which both halves are there."""
    kinds = set(moment.values())
    return sorted({one for one, _ in kinds if {(one, "prefill"), (one, "decode")} <= kinds})


def test_suspended_and_back_the_status_reads_cleanly_at_every_moment(kube: Kube, smollm2: dict) -> None:
    wait_settled(kube, "smollm2", seconds=240)
    with moments(kube, RESOURCES) as seen:
        for suspend in (True, False):
            edit(kube, suspend=suspend)
            until("done", lambda: settled(kube), 240)
    assert [words for item in seen for words in unclean(item)] == []
    answers = [kstatus(item) for item in seen]
    assert "Failed" not in answers
    for generation in {item["metadata"]["generation"] for item in seen}:
        of_it = [kstatus(item) for item in seen if item["metadata"]["generation"] == generation]
        assert "Current" in of_it
        assert set(of_it[of_it.index("Current") :]) == {"Current"}


def test_a_refused_spec_reads_as_failed_and_healed_as_current(kube: Kube, smollm2: dict) -> None:
    engine = smollm2["spec"]["engine"]
    wait_settled(kube, "smollm2", seconds=240)
    volumes = [{"name": "host", "hostPath": {"path": "/"}}]
    with moments(kube, RESOURCES) as seen:
        edit(kube, router=smollm2["spec"]["router"] | {"template": {"volumes": volumes}})
        until("it is refused", lambda: kstatus(kube.find(RESOURCE, "smollm2", NAMESPACE) or {}) == "Failed", 60)
        edit(kube, router={"template": None}, engine=engine)
        until("done", lambda: settled(kube), 120)
    assert [words for item in seen for words in unclean(item)] == []
    assert {kstatus(item) for item in seen} == {"InProgress", "Failed", "Current"}
