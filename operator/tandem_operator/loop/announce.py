"""Posting events on a resource."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from tandem_operator.edges.errors import ApiError
from tandem_operator.edges.events import Event, post

if TYPE_CHECKING:
    from datetime import datetime

    from tandem_operator.loop.world import World

log = logging.getLogger(__name__)
Object = dict[str, Any]


async def announce(world: World, body: Object, event: Event, now: datetime) -> None:
    """Post an event; it is news, and no pass fails for it."""
    try:
        await post(world.kube, body, event, now, world.settings.pod_name)
    except ApiError as error:
        log.warning("event %s was not posted: %s", event.reason, error.message)


async def announce_drift(world: World, body: Object, words: str, now: datetime) -> None:
    """Say, once a repair, that somebody changed what the operator keeps."""
    world.metrics.drift_repairs.inc()
    log.warning("%s/%s: %s", body["metadata"]["namespace"], body["metadata"]["name"], words)
    await announce(world, body, Event("DriftRepaired", "Apply", words, warning=True), now)
