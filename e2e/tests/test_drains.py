"""A drain on the real API server: the Eviction API takes one worker of a role at a time, and all of them come back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e.demo.chat import ask
from e2e.harness.kube import RESOURCE, Kube, KubectlError
from e2e.harness.waiting import until
from e2e.harness.world import NAMESPACE, roles, staying_pods, wait_settled

REFUSED = "TooManyRequests"  # as kubectl spells 429
BACK_S = 180.0


def evicted(kube: Kube, pod: str, dry: bool = False) -> str:
    """Ask for the pod's eviction, as `kubectl drain` does; '' or the words in which it is refused."""
    eviction: dict[str, Any] = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": NAMESPACE},
        "deleteOptions": {"dryRun": ["All"] if dry else []},
    }
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction"
    try:
        kube.run("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))
    except KubectlError as error:
        return str(error)
    return ""


def named(kube: Kube, role: str) -> list[str]:
    """Workers of a role that are to stay."""
    found = staying_pods(kube, NAMESPACE, f"tandem.dev/resource=smollm2,tandem.dev/role={role}")
    return sorted(pod["metadata"]["name"] for pod in found)


def set_minimum(kube: Kube, decode: int) -> None:
    kube.patch(RESOURCE, "smollm2", NAMESPACE, {"spec": {"rebalance": {"roles": {"minDecode": decode}}}})


@pytest.mark.slow
def test_one_worker_of_a_role_at_a_time(kube: Kube, smollm2: dict, router_url: str) -> None:
    first, second = named(kube, "decode")
    assert evicted(kube, first) == ""
    refusal = evicted(kube, second)
    assert REFUSED in refusal
    assert "disruption budget" in refusal
    assert ask(router_url, "smollm2", "Say hello.", tokens=4).text, "a pair is left"
    until("the drain goes on", lambda: not evicted(kube, second), BACK_S, every=1)
    assert roles(kube, "smollm2")[1] >= 1, "once the first is back"
    assert ask(router_url, "smollm2", "Say hello.", tokens=4).text
    until("all roles are back", lambda: roles(kube, "smollm2") == (1, 2), BACK_S)
    assert not {first, second} & set(named(kube, "decode"))
    wait_settled(kube, "smollm2")
    assert ask(router_url, "smollm2", "Say hello.", tokens=4).text


def test_a_minimum_that_somebody_asked_for_is_kept_and_one_worker_alone_may_go(kube: Kube, smollm2: dict) -> None:
    (prefill,), (decode, _) = named(kube, "prefill"), named(kube, "decode")
    assert evicted(kube, decode, dry=True) == ""
    set_minimum(kube, decode=2)
    try:
        until("no decode worker may go", lambda: REFUSED in evicted(kube, decode, dry=True), 60)
        assert evicted(kube, prefill, dry=True) == "", "its node has to be renewed, too"
    finally:
        set_minimum(kube, decode=1)
    until("one may go again", lambda: not evicted(kube, decode, dry=True), 60)
    wait_settled(kube, "smollm2")
