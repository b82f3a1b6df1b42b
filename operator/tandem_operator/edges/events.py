"""Kubernetes events (events.k8s.io/v1): one object a call, never aggregated, so only transitions are posted."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tandem_operator.edges.errors import AlreadyExistsError
from tandem_operator.edges.kinds import KINDS, RESOURCE

if TYPE_CHECKING:
    from datetime import datetime

    from tandem_operator.edges.kube import Kube

COMPONENT = "tandem.dev/operator"
MAX_NOTE = 1000  # the API allows 1024 bytes
MAX_NAME = 180


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that changed; `warning` marks what needs a person."""

    reason: str  # CamelCase, as the condition's or the decision's
    action: str  # what the operator did: Reconcile, Flip, Scale …
    note: str
    warning: bool = False


def capped(note: str) -> str:
    """The note in at most MAX_NOTE bytes, cut between characters, with a mark where it was cut."""
    raw = note.encode()
    if len(raw) <= MAX_NOTE:
        return note
    return raw[: MAX_NOTE - 4].decode(errors="ignore") + " …"


def event_object(resource: dict[str, Any], event: Event, now: datetime, instance: str) -> dict[str, Any]:
    """The event as the API wants it. Its name is its content: a pass that runs again posts no second one."""
    metadata = resource["metadata"]
    about = f"{metadata['uid']}/{event.reason}/{event.action}/{event.note}/{now.isoformat(timespec='minutes')}"
    digest = hashlib.sha256(about.encode()).hexdigest()[:16]
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name'][:MAX_NAME]}.{digest}", "namespace": metadata["namespace"]},
        "eventTime": now.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "type": "Warning" if event.warning else "Normal",
        "reason": event.reason[:128],
        "action": event.action[:128],
        "note": capped(event.note),
        "reportingController": COMPONENT,
        "reportingInstance": instance[:128],
        "regarding": {
            "apiVersion": KINDS[RESOURCE].api_version,
            "kind": RESOURCE,
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
    }


async def post(kube: Kube, resource: dict[str, Any], event: Event, now: datetime, instance: str) -> None:
    """Create the event; one that is there already is the same one."""
    try:
        await kube.create(event_object(resource, event, now, instance))
    except AlreadyExistsError:
        return
