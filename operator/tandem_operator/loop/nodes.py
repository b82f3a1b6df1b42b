"""Nodes of the named pools share their RDMA cards: looked at once a resync, only where the cluster's operator asks."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from tandem_operator.api.constants import LABEL_MANAGED_BY, MANAGED_BY
from tandem_operator.edges.errors import ApiError
from tandem_operator.loop.carry_out import is_as_wanted
from tandem_operator.templates.children import stamped
from tandem_operator.templates.rdma_nodes import FOREIGN, NAMESPACE, Sharing, advice, manifests, places

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
            log.warning("%s", problem or "nodes' RDMA cards are as the settings ask for")
        said = problem
        world.metrics.rdma_shared.set(problem is None)
        await asyncio.sleep(world.settings.resync_seconds)
    await asyncio.Event().wait()  # nobody asks for it: a part that ends would end the operator


async def prepare_once(world: World, sharing: Sharing) -> str | None:
    """Bring its objects to what they should be, take away what is asked for no more; what keeps us. Raises ApiError."""
    wanted = manifests(sharing)
    await clear(world, sharing, {(item["kind"], item["metadata"]["name"]) for item in wanted})
    if wanted and sharing.functions is None:
        foreign = await world.kube.get("ConfigMap", NAMESPACE, FOREIGN)
        if foreign is not None:  # its plugin shares these cards: two would each count them
            return advice(foreign, sharing)
    for manifest in wanted:
        if (problem := await bring(world, stamped(manifest))) is not None:
            return problem
    return None


async def bring(world: World, wanted: Object) -> str | None:
    """One object as it is wanted; the words where it is somebody else's."""
    kind, namespace, name = wanted["kind"], wanted["metadata"]["namespace"], wanted["metadata"]["name"]
    live = await world.kube.get(kind, namespace, name)
    if live is not None and not is_ours(live):
        return f"{kind} {namespace}/{name} exists and is somebody else's: it is left alone, and nodes as they are"
    if live is None or not is_as_wanted(live, wanted, {}):
        await world.kube.apply(wanted, uid=live["metadata"]["uid"] if live else None)
    return None


async def clear(world: World, sharing: Sharing, wanted: set[tuple[str, str]]) -> None:
    """Take away what the operator made and nobody asks for any more."""
    for kind, namespace, name in places(sharing.functions):
        if (kind, name) in wanted:
            continue
        live = await world.kube.get(kind, namespace, name)
        if live is not None and is_ours(live):
            await world.kube.delete({**live, "kind": kind})
            log.info("took %s %s/%s away: nobody asks for it any more", kind, namespace, name)


def is_ours(live: Object) -> bool:
    """Did the operator make it?"""
    return bool((live["metadata"].get("labels") or {}).get(LABEL_MANAGED_BY) == MANAGED_BY)
