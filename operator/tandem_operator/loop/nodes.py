"""Nodes of the named pools share their RDMA cards: looked at once a resync, only where the cluster's operator asks."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from tandem_operator.api.constants import LABEL_MANAGED_BY, MANAGED_BY
from tandem_operator.edges.errors import ApiError, NotFoundError
from tandem_operator.loop.carry_out import is_as_wanted
from tandem_operator.templates import nic_policy
from tandem_operator.templates.children import stamped
from tandem_operator.templates.rdma_nodes import FOREIGN, NAMESPACE, Sharing, advice, entry, manifests, places

if TYPE_CHECKING:
    from tandem_operator.loop.world import World

log = logging.getLogger(__name__)
Object = dict[str, Any]


async def prepare_nodes(world: World) -> None:
    """Prepare them, for ever, once every `resync_seconds`; what is wrong is said when it changes."""
    said: str | None = ""  # nothing yet: the first look is told, whatever it finds
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
    if wanted and sharing.network_operator:
        return await by_network_operator(world, sharing, wanted)
    return await bring_all(world, wanted)


async def by_network_operator(world: World, sharing: Sharing, wanted: list[Object]) -> str | None:
    """Node policies, unless the cluster policy does it already, or ought to: that one is never written."""
    cluster = await world.kube.get(nic_policy.CLUSTER_KIND, "", nic_policy.CLUSTER_NAME)
    patch = nic_policy.patch_of(cluster, entry(sharing), sharing.image)
    if nic_policy.shares_already(cluster):
        if patch is None:
            return None
        return f"{nic_policy.CLUSTER_KIND} shares cards, not as {sharing.resource}, and is not ours to write: {patch}"
    try:
        return await bring_all(world, wanted)
    except NotFoundError:
        return f"no {nic_policy.KIND} is served here: the network operator is missing, or too old; then: {patch}"


async def bring_all(world: World, wanted: list[Object]) -> str | None:
    """All objects as they are wanted; the words of the first that is somebody else's."""
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
    for kind, namespace, name in places(sharing):
        if (kind, name) in wanted:
            continue
        live = await world.kube.get(kind, namespace, name)
        if live is not None and is_ours(live):
            await world.kube.delete({**live, "kind": kind, "metadata": {**live["metadata"], "namespace": namespace}})
            log.info("took %s %s/%s away: nobody asks for it any more", kind, namespace, name)


def is_ours(live: Object) -> bool:
    """Did the operator make it?"""
    return bool((live["metadata"].get("labels") or {}).get(LABEL_MANAGED_BY) == MANAGED_BY)
