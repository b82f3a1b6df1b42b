"""What node autoscalers say of a pod that finds no node: their events on the pod, asked for only while there is one.

Cluster Autoscaler: TriggeredScaleUp, NotTriggerScaleUp. Karpenter: Nominated, FailedScheduling. Watching all events of
a cluster for these few would cost more than the rest of the operator.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tandem_operator.edges.errors import ApiError
from tandem_operator.loop.faults import quoted, unschedulable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tandem_operator.loop.refs import Ref
    from tandem_operator.loop.world import World

log = logging.getLogger(__name__)
Object = dict[str, Any]
EVERY_S = 15.0  # between two looks at one resource
AUTOSCALERS = ("cluster-autoscaler", "karpenter")


@dataclass(frozen=True, slots=True)
class Heard:
    """An autoscaler's newest words on a pod ('': none), and when they were asked for (monotonic seconds)."""

    pod: str
    words: str
    at: float


async def listen(world: World, ref: Ref) -> None:
    """Ask for the words on the resource's first pod without a node; a pass reads them, and never fails for them."""
    waiting = unschedulable(world.cache.of(ref, "Pod"))
    if waiting is None:
        world.heard.pop(ref, None)
        return
    name, known = waiting["metadata"]["name"], world.heard.get(ref)
    if known is not None and known.pod == name and time.monotonic() - known.at < EVERY_S:
        return
    try:
        events = await world.kube.events_on_pod(ref.namespace, name)
    except ApiError as error:
        log.warning("events on pod %s/%s cannot be read: %s", ref.namespace, name, error.message)
        events = []
    world.heard[ref] = Heard(name, newest_words(events, name), time.monotonic())
    world.queue.mark_later(ref, EVERY_S)  # an event wakes nobody


def newest_words(events: Iterable[Object], pod: str) -> str:
    """`karpenter: FailedScheduling: …` of the newest event of an autoscaler; '' where there is none."""
    said = [event for event in events if speaker(event) and (event.get("regarding") or {}).get("name") == pod]
    if not said:
        return ""
    newest = max(said, key=when)
    return f"{speaker(newest)}: {newest.get('reason', '')}: {quoted(newest.get('note') or '')}"


def speaker(event: Object) -> str:
    """The autoscaler that posted it, '' where somebody else did; older clients fill the source alone."""
    who = event.get("reportingController") or (event.get("deprecatedSource") or {}).get("component") or ""
    return next((name for name in AUTOSCALERS if str(who).startswith(name)), "")


def when(event: Object) -> str:
    """When it was seen last, RFC 3339 and so in order; '' where it does not tell."""
    series = (event.get("series") or {}).get("lastObservedTime")
    return str(series or event.get("deprecatedLastTimestamp") or event.get("eventTime") or "")
