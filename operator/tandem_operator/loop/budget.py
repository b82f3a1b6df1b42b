"""The GPUs that all resources share: claims out of the newest looks, caps for the next passes.

Nothing of it must be remembered: an operator that has just started holds every resource at what it has until it has
looked at all of them once.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tandem_operator.api.catalogue import UnknownAcceleratorError, UnknownDTypeError
from tandem_operator.api.v1alpha1 import InvalidResourceError
from tandem_operator.loop.observe import observe, parse_known
from tandem_operator.loop.refs import Ref
from tandem_operator.plan.claims import Cap, Member, caps

if TYPE_CHECKING:
    from tandem_operator.loop.world import World

log = logging.getLogger(__name__)
EVERY_S = 15.0


async def watch_budget(world: World) -> None:
    """Share again and again, for ever; without a shared budget there is nothing to do."""
    if not world.settings.fleet_gpus:
        await asyncio.Event().wait()
    while True:
        await share_budget(world, datetime.now(UTC))
        await asyncio.sleep(EVERY_S)


async def share_budget(world: World, now: datetime) -> None:
    """One sharing: resources whose cap changed get a pass."""
    members = members_of(world, now)
    if any(not world.fleet.look(ref).number for ref in members):
        return  # one that was not looked at would be taken for one without load
    by_name = {str(ref): ref for ref in members}
    found = await asyncio.to_thread(caps, list(members.values()), world.settings.fleet_gpus, now)
    new = {by_name[name]: cap for name, cap in found.items()}
    for ref, cap in new.items():
        if cap.gpus != gpus_in(world.caps, ref):
            log.info("%s may have %d GPUs of the fleet's %d: %s", ref, cap.gpus, world.settings.fleet_gpus, cap.why)
            world.queue.mark(ref)
    world.caps = new


def gpus_in(known: dict[Ref, Cap], ref: Ref) -> int | None:
    """The cap that was known."""
    return known[ref].gpus if ref in known else None


def members_of(world: World, now: datetime) -> dict[Ref, Member]:
    """Every resource that can be read, by the facts that a pass would have, but for the cap."""
    found = {}
    for ref, body in world.cache.resources():
        if ref in world.left:
            continue  # another operator's
        try:
            resource = parse_known(world, ref, body)
            seen = observe(world, ref, body, resource, now, shared=False)
        except (InvalidResourceError, UnknownAcceleratorError, UnknownDTypeError):
            continue  # its own pass says so in its status; it moves nothing
        found[ref] = Member(str(ref), resource.spec.priority, seen.facts)
    return found
