"""Nodes of the named pools share their RDMA cards: looked at once a resync, only where the cluster's operator asks."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from tandem_operator.api.constants import LABEL_MANAGED_BY, MANAGED_BY
from tandem_operator.edges.errors import ApiError
from tandem_operator.loop.carry_out import is_as_wanted
from tandem_operator.templates.children import stamped
from tandem_operator.templates.rdma_nodes import FOREIGN, NAMESPACE, Sharing, advice, manifests

if TYPE_CHECKING:
    from tandem_operator.loop.world import World

log = logging.getLogger(__name__)
Object = dict[str, Any]


async def prepare_nodes(world: World) -> None:
    """Prepare them, for ever, once every `resync_seconds`; what is wrong is said when it changes."""
    said: str | None = None
    while (sharing := world.settings.rdma_sharing) is not None:
        try:
            problem = await prepare_once(world, sharing)
        except ApiError as error:
            problem = f"RDMA cards are not shared: {error.message}"
        if problem != said:
            log.warning("%s", problem or f"nodes share their RDMA cards as {sharing.resource}")
        said = problem
        world.metrics.rdma_shared.set(problem is None)
        await asyncio.sleep(world.settings.resync_seconds)
    await asyncio.Event().wait()  # nobody asks for it: a part that ends would end the operator


async def prepare_once(world: World, sharing: Sharing) -> str | None:
    """Bring both objects to what they should be; what keeps us from it. Raises ApiError."""
    foreign = await world.kube.get("ConfigMap", NAMESPACE, FOREIGN)
    if foreign is not None:  # its plugin shares these cards: two would each count them
        return advice(foreign, sharing)
    for manifest in manifests(sharing):
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        live = await world.kube.get(kind, NAMESPACE, name)
        if live is not None and (live["metadata"].get("labels") or {}).get(LABEL_MANAGED_BY) != MANAGED_BY:
            return f"{kind} {NAMESPACE}/{name} exists and is somebody else's: RDMA cards are not shared"
        wanted = stamped(manifest)
        if live is None or not is_as_wanted(live, wanted, {}):
            await world.kube.apply(wanted, uid=live["metadata"]["uid"] if live else None)
    return None
