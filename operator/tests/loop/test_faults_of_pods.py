"""What pods say is wrong, and which words reach the status."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tandem_operator.loop.faults import late_fault, may_lack_key, scheduling_fault, stalling_fault

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def pod(pod_name="w-1", deleting=False, conditions=(), **container):
    metadata = {"name": pod_name, **({"deletionTimestamp": "now"} if deleting else {})}
    status = {"conditions": list(conditions)}
    if container:
        status["containerStatuses"] = [
            {"name": "worker", "image": "img:1", "ready": False, "restartCount": 0, **container}
        ]
    return {"metadata": metadata, "status": status}


def waiting(reason, message=""):
    return {"state": {"waiting": {"reason": reason, "message": message}}}


def ended(code, message="", key="lastState"):
    return {key: {"terminated": {"exitCode": code, "message": message}}}


def not_started(key="lastState", reason="StartError"):
    return {key: {"terminated": {"reason": reason, "exitCode": 128, "message": "not in $PATH"}}}


@pytest.mark.parametrize(
    ("found", "reason", "words"),
    [
        pytest.param(pod(), None, "", id="no container yet"),
        pytest.param(pod(**waiting("ContainerCreating")), None, "", id="starting"),
        pytest.param(pod(**waiting("ImagePullBackOff", "back-off")), "ImagePullFailed", "img:1", id="image"),
        pytest.param(pod(**waiting("ErrImagePull")), "ImagePullFailed", "w-1", id="image, first try"),
        pytest.param(
            pod(**waiting("CreateContainerConfigError", "couldn't find key k in Secret a/b")),
            *("ContainerConfigFailed", "CreateContainerConfigError: couldn't find key k in Secret a/b"),
            id="no such key",
        ),
        pytest.param(pod(**waiting("CreateContainerError")), "ContainerConfigFailed", "no reason", id="no words"),
        pytest.param(
            pod("r-1", name="router", **waiting("RunContainerError", "not in $PATH")),
            *("ContainerConfigFailed", "r-1, container router"),
            id="no such command",
        ),
        pytest.param(
            pod(restartCount=1, **waiting("CrashLoopBackOff", "back-off 10s"), **not_started()),
            *("ContainerConfigFailed", "StartError: not in $PATH"),
            id="no such command, between two tries",
        ),
        pytest.param(
            pod(restartCount=9, **waiting("RunContainerError", "context"), **not_started()),
            *("ContainerConfigFailed", "StartError: not in $PATH"),
            id="no such command, the same words at each try",
        ),
        pytest.param(
            pod(restartCount=9, **not_started("state", "ContainerCannotRun")),
            *("ContainerConfigFailed", "ContainerCannotRun: not in $PATH"),
            id="no such command, another runtime",
        ),
        pytest.param(pod(restartCount=1, state={"running": {}}, **not_started()), None, "", id="it starts by now"),
        pytest.param(
            pod(**ended(2, "no directory /m", "state")), "ModelLoadFailed", "no directory /m", id="model, just ended"
        ),
        pytest.param(pod(**ended(2, "no directory /m")), "ModelLoadFailed", "no directory /m", id="model, in back-off"),
        pytest.param(pod("r-1", name="router", **ended(2)), None, "", id="2 of a router is another thing"),
        pytest.param(pod(ready=True, **ended(2)), None, "", id="it runs now"),
        pytest.param(pod(restartCount=1, **ended(1)), None, "", id="one crash is chance"),
        pytest.param(pod(restartCount=3, **ended(1, "boom\n  at x")), "CrashLoop", "boom at x", id="crash loop"),
        pytest.param(pod(restartCount=9, **ended(0)), None, "", id="ended well"),
        pytest.param(pod(deleting=True, **waiting("ImagePullBackOff")), None, "", id="on its way out"),
        pytest.param(pod(**ended(2, "x" * 5000)), "ModelLoadFailed", "…", id="long words are cut"),
    ],
)
def test_stalling_fault(found, reason, words):
    fault = stalling_fault([pod("other"), found])
    assert (fault.reason if fault else None) == reason
    if fault:
        assert words in fault.message
        assert len(fault.message) < 700


def test_a_container_that_must_end_before_the_others_start_is_heard():
    found = pod()
    init = {"name": "memlock", "ready": False, "restartCount": 3, **ended(1, "may lock 64 KiB")}
    found["status"]["initContainerStatuses"] = [init]
    assert stalling_fault([found]).reason == "CrashLoop"
    assert "may lock 64 KiB" in stalling_fault([found]).message


UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes: Insufficient rdma/x",
}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        pytest.param(pod(conditions=[UNSCHEDULABLE]), "Insufficient rdma/x", id="no node"),
        pytest.param(pod(conditions=[{**UNSCHEDULABLE, "status": "True"}]), None, id="scheduled"),
        pytest.param(pod(conditions=[{**UNSCHEDULABLE, "reason": "SchedulingGated"}]), None, id="gated on purpose"),
    ],
)
def test_scheduling_fault(found, words):
    fault = scheduling_fault([found])
    assert (fault is None) == (words is None)
    if fault:
        assert words in fault.message


def scheduled(seconds_ago, **others):
    since = (NOW - timedelta(seconds=seconds_ago)).isoformat()
    found = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": since}]
    return pod(conditions=found + [{"type": kind, "status": status} for kind, status in others.items()])


@pytest.mark.parametrize(
    ("found", "lacks"),
    [
        pytest.param(scheduled(60), True, id="its volumes do not come up"),
        pytest.param(scheduled(60, PodReadyToStartContainers="False"), True, id="and it says so"),
        pytest.param(scheduled(5), False, id="it has only just got its node"),
        pytest.param(scheduled(60, PodReadyToStartContainers="True"), False, id="its image is being pulled"),
        pytest.param(scheduled(60, Ready="True"), False, id="it serves"),
        pytest.param(pod(), False, id="it has no node"),
    ],
)
def test_may_lack_key(found, lacks):
    assert may_lack_key([found], NOW) is lacks


def since(kind, status, minutes, **more):
    return {
        "type": kind,
        "status": status,
        "lastTransitionTime": (NOW - timedelta(minutes=minutes)).isoformat(),
        **more,
    }


def up(minutes, unready=None, **container):
    ready = since("Ready", "False", minutes if unready is None else unready, message="not ready: [worker]")
    return pod(conditions=[since("PodScheduled", "True", minutes), ready], **container)


def lost(minutes, reason="Unschedulable"):
    return pod(conditions=[since("PodScheduled", "False", minutes, reason=reason, message="0/3 nodes")])


@pytest.mark.parametrize(
    ("found", "start_s", "words"),
    [
        pytest.param(pod(), None, None, id="nothing is known yet"),
        pytest.param(up(44), None, None, id="it may load still"),
        pytest.param(up(46), None, "not Ready for 45 minutes: not ready: [worker]", id="it does not come up"),
        pytest.param(up(46), 200.0, "for 45 minutes", id="others were fast, and their model was another perhaps"),
        pytest.param(up(46), 1200.0, None, id="others took twenty minutes"),
        pytest.param(up(61), 1200.0, "for 60 minutes", id="three times what others took"),
        pytest.param(up(500, unready=5), None, None, id="it served until a moment ago"),
        pytest.param(up(500, unready=50), None, "for 45 minutes", id="it served once, long ago"),
        pytest.param(up(46, **waiting("ContainerCreating")), None, "ContainerCreating", id="a volume does not come"),
        pytest.param(scheduled(9999), None, "it says nothing", id="a node that says nothing of it"),
        pytest.param(scheduled(9999, Ready="True"), None, None, id="it serves"),
        pytest.param(lost(14), None, None, id="an autoscaler may bring a node yet"),
        pytest.param(lost(16), None, "no node for pod w-1 for 15 minutes: 0/3 nodes", id="no node"),
        pytest.param(lost(16, "SchedulingGated"), None, None, id="gated on purpose"),
        pytest.param(pod(conditions=[UNSCHEDULABLE]), None, None, id="no node, since nobody knows when"),
        pytest.param({**lost(16), "metadata": {"name": "w-1", "deletionTimestamp": "x"}}, None, None, id="going"),
    ],
)
def test_late_fault(found, start_s, words):
    fault = late_fault([pod("other"), found], NOW, start_s)
    assert (fault is None) == (words is None)
    if fault:
        assert words in fault.message
