"""What is wrong with pods, as the kubelet and the scheduler say it: pure, on the pods' own status."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Object = dict[str, Any]
# ErrImagePull and ImagePullBackOff take turns; the others are final.
IMAGE_REASONS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"}
)
# A container that cannot be made of what its pod names: a Secret or a key that is not there, a command that the image
# has not.
CONTAINER_REASONS = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
# As how a runtime ends a container that it could not start. Between two tries a pod says CrashLoopBackOff and this.
NOT_STARTED = frozenset({"StartError", "ContainerCannotRun"})
MODEL_EXIT_CODE = 2  # a worker's exit code when its model cannot be loaded (docs/reference/borders.md)
CRASHES = 3  # one crash is chance
MAX_QUOTE = 500
MOUNTS_S = 20.0  # as long as a pod's volumes usually take, and more
# The startup probe gives a model half an hour to load; half as long again is for the image. Where this resource's
# workers were seen to take longer, a new one gets three times as long as they took: another model may be larger.
LATE_S = 2700.0
LATE_STARTS = 3
# A former worker's devices are free once it has ended, and an autoscaler gives a node a quarter of an hour to come
# (cluster-autoscaler's max-node-provision-time): only then does waiting for one need a person.
NO_NODE_S = 900.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong, for a condition: its reason and a sentence that names the pod."""

    reason: str
    message: str


def stalling_fault(pods: Iterable[Object]) -> Fault | None:
    """A fault that only an edit or a person heals: an image that cannot be pulled, a Secret that is not there."""
    for pod in _living(pods):
        for container in containers_of(pod):
            for find in (_image_fault, _container_fault, _exit_fault):
                if (fault := find(pod, container)) is not None:
                    return fault
    return None


def late_fault(pods: Iterable[Object], now: datetime, start_s: float | None) -> Fault | None:
    """A pod that has not come up for so long that it will not; `start_s`: how long others took, where that is known."""
    most = max(LATE_S, LATE_STARTS * (start_s or 0.0))
    for pod in sorted(_living(pods), key=lambda pod: str(pod["metadata"]["name"])):
        name, scheduled = pod["metadata"]["name"], condition_of(pod, "PodScheduled")
        if finds_no_node(scheduled) and _seconds_since(scheduled, now) > NO_NODE_S:
            words = f"no node for pod {name} for {NO_NODE_S / 60:.0f} minutes"
            return Fault("Unschedulable", f"{words}: {quoted(scheduled.get('message', ''))}")
        if scheduled.get("status") == "True" and _unready_s(pod, now) > most:
            words = f"pod {name} has its node and is not Ready for {most / 60:.0f} minutes"
            return Fault("NeverReady", f"{words}: {_hindrance(pod)}")
    return None


def scheduling_fault(pods: Iterable[Object], autoscaler: str = "") -> Fault | None:
    """A pod for which the scheduler finds no node, in the scheduler's own words, and in an autoscaler's."""
    if (pod := unschedulable(pods)) is None:
        return None
    name, said = pod["metadata"]["name"], quoted(condition_of(pod, "PodScheduled").get("message", ""))
    return Fault("Unschedulable", f"no node for pod {name}: {said}" + (f"; {autoscaler}" if autoscaler else ""))


def unschedulable(pods: Iterable[Object]) -> Object | None:
    """The first pod, by name, for which the scheduler finds no node."""
    waiting = [pod for pod in _living(pods) if finds_no_node(condition_of(pod, "PodScheduled"))]
    return min(waiting, key=lambda pod: str(pod["metadata"]["name"]), default=None)


def finds_no_node(scheduled: Object) -> bool:
    """Is that what the condition PodScheduled says?"""
    return scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"


def refused_fault(deployments: Mapping[str, Object]) -> Fault | None:
    """A Deployment whose pods the API server refuses (quota, admission), in the API server's own words."""
    for name, deployment in deployments.items():
        condition = condition_of(deployment, "ReplicaFailure")
        if condition.get("status") == "True":
            return Fault("PodsRefused", f"no pod of {name} can be made: {quoted(condition.get('message', ''))}")
    return None


def may_lack_key(pods: Iterable[Object], now: datetime) -> bool:
    """May a pod wait for a Secret that is not there? It has a node, and its volumes do not come up for a while."""
    return any(
        (since := condition_of(pod, "PodScheduled")).get("status") == "True"
        and (now - datetime.fromisoformat(since["lastTransitionTime"])).total_seconds() > MOUNTS_S
        for pod in _living(pods)
        if condition_of(pod, "PodReadyToStartContainers").get("status") != "True" and not is_ready(pod)
    )


def last_words(pods: Iterable[Object]) -> str:
    """What the container of the pod that ended last said; '' where none did."""
    ended = [
        state["terminated"]
        for pod in pods
        for container in pod.get("status", {}).get("containerStatuses") or []
        if (state := container.get("state") or {}).get("terminated")
    ]
    return quoted(max(ended, key=lambda end: end.get("finishedAt", "")).get("message", "")) if ended else ""


def containers_of(pod: Object) -> list[Object]:
    """What the kubelet says of a pod's containers; of those first that must end before the others start."""
    status = pod.get("status") or {}
    return [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]


def condition_of(item: Object, kind: str) -> Object:
    """A condition of an object; empty where it has none of that type."""
    conditions = item.get("status", {}).get("conditions") or []
    return next((c for c in conditions if c.get("type") == kind), {})


def is_ready(pod: Object) -> bool:
    """Does the pod serve?"""
    return condition_of(pod, "Ready").get("status") == "True" and not pod["metadata"].get("deletionTimestamp")


def quoted(text: str) -> str:
    """Somebody else's words in one line, capped."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_QUOTE else line[: MAX_QUOTE - 1] + "…"


def _living(pods: Iterable[Object]) -> Iterator[Object]:
    return (pod for pod in pods if not pod["metadata"].get("deletionTimestamp"))


def _seconds_since(condition: Object, now: datetime) -> float:
    """How long a condition has stood; 0 where it does not say."""
    since = condition.get("lastTransitionTime")
    return (now - datetime.fromisoformat(since)).total_seconds() if since else 0.0


def _unready_s(pod: Object, now: datetime) -> float:
    """How long a pod that has a node does not serve: since it got the node, or since it served last."""
    if is_ready(pod):
        return 0.0
    ready, scheduled = condition_of(pod, "Ready"), condition_of(pod, "PodScheduled")
    return _seconds_since(ready if ready.get("lastTransitionTime") else scheduled, now)


def _hindrance(pod: Object) -> str:
    """What a pod that does not come up waits for, as far as its status tells."""
    states = [container.get("state") or {} for container in containers_of(pod)]
    waits = [state["waiting"] for state in states if state.get("waiting")]
    said = [str(waiting.get("message") or waiting.get("reason", "")) for waiting in waits]
    return quoted("; ".join(filter(None, said)) or condition_of(pod, "Ready").get("message", "")) or "it says nothing"


def _container_fault(pod: Object, container: Object) -> Fault | None:
    state, last = container.get("state") or {}, container.get("lastState") or {}
    waiting = state.get("waiting") or {}
    # The end first, while there is no other start: it stands between two tries as well, so the words stay the same.
    ended = state.get("terminated") or (waiting and last.get("terminated")) or {}
    found = ended if ended.get("reason") in NOT_STARTED else waiting
    if found.get("reason") not in CONTAINER_REASONS | NOT_STARTED:
        return None
    name, which = pod["metadata"]["name"], container.get("name", "")
    said = quoted(found.get("message", "")) or "it gave no reason"
    return Fault("ContainerConfigFailed", f"pod {name}, container {which}: {found['reason']}: {said}")


def _image_fault(pod: Object, container: Object) -> Fault | None:
    waiting = (container.get("state") or {}).get("waiting") or {}
    if waiting.get("reason") not in IMAGE_REASONS:
        return None
    name, image = pod["metadata"]["name"], container.get("image", "")
    return Fault(
        "ImagePullFailed", f"pod {name} cannot pull {image}: {quoted(waiting.get('message', waiting['reason']))}"
    )


def _exit_fault(pod: Object, container: Object) -> Fault | None:
    if container.get("ready"):
        return None
    name = pod["metadata"]["name"]
    # In back-off the exit is the last state; in the moment between two tries, the present one.
    for state in (container.get("state") or {}, container.get("lastState") or {}):
        ended = state.get("terminated") or {}
        said = quoted(ended.get("message", "")) or "it gave no reason"
        if ended.get("exitCode") == MODEL_EXIT_CODE and container.get("name") == "worker":
            return Fault("ModelLoadFailed", f"pod {name} cannot load its model: {said}")
        if ended.get("exitCode", 0) != 0 and container.get("restartCount", 0) >= CRASHES:
            return Fault(
                "CrashLoop",
                f"pod {name} ended {container['restartCount']} times, exit code {ended['exitCode']}: {said}",
            )
    return None
