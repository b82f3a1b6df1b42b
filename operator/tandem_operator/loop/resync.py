"""The slow resync: what a watch missed is found by listing, and every resource gets a pass."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import random
import time
from typing import TYPE_CHECKING, Any

from tandem_operator.api.catalogue import BadCatalogueError
from tandem_operator.edges.errors import ApiError, NotFoundError
from tandem_operator.edges.kinds import OPTIONAL
from tandem_operator.loop.cache import key_of, ref_of
from tandem_operator.loop.catalogue import load
from tandem_operator.loop.handlers import WATCHED, selector_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tandem_operator.loop.cache import Key
    from tandem_operator.loop.refs import Ref
    from tandem_operator.loop.world import World

    Listed = tuple[set[Key], int, set[Ref]]  # what there is, of which version, and whose resources had news

log = logging.getLogger(__name__)
RETRY_S = 5.0
FIRST_SYNC_S = 900.0
WHOLE_EVERY = 12  # resyncs: an hour, by default
EARLY_S = (10.0, 60.0)  # the first two come soon; the very first marks only what differed
Object = dict[str, Any]


def load_catalogue(world: World) -> None:
    """Read the mounted catalogue; one that cannot be read leaves the one before in force."""
    try:
        world.catalogue = load(world.settings.catalogue_path)
    except (BadCatalogueError, OSError) as error:
        log.error("the hardware catalogue in %s is not used: %s", world.settings.catalogue_path, error)  # noqa: TRY400


async def fill_cache(world: World, *, routine: bool = True) -> None:
    """List every watched kind into the cache; mark what differed, and, as `routine`, all resources. Raises ApiError."""
    load_catalogue(world)
    for kind in WATCHED:
        for ref in await take_kind(world, kind):
            world.queue.mark(ref)
    for ref, _ in world.cache.resources() if routine else ():
        world.queue.mark_routine(ref)


async def take_kind(world: World, kind: str) -> set[Ref]:
    """List a kind into the cache; gives the resources that differed. An optional kind that is not served has none."""
    try:
        listed, as_of, changed = await heads_of(world, kind) or await all_of(world, kind)
    except NotFoundError:
        if kind not in OPTIONAL:
            raise
        world.absent.add(kind)
        return world.cache.lose(kind)
    world.absent.discard(kind)
    return changed | world.cache.keep(kind, listed, as_of)


async def heads_of(world: World, kind: str) -> Listed | None:
    """By metadata alone, which is a third of a list and nearly always says that no watch missed anything.

    None where something is news.
    """
    listed: set[Key] = set()
    as_of = 0
    if not world.cache.all(kind):
        return None
    async for items, version in listing(world, kind, heads=True):
        as_of = version
        if any(world.cache.is_news(kind, item, listed=True) for item in items):
            return None
        listed |= {key_of(kind, item) for item in items}
    return listed, as_of, set()


async def all_of(world: World, kind: str) -> Listed:
    """Whole objects, into the cache."""
    listed: set[Key] = set()
    changed: set[Ref] = set()
    as_of = 0
    async for items, version in listing(world, kind, heads=False):
        as_of = version
        listed |= {key_of(kind, item) for item in items}
        news = [item for item in items if world.cache.put(kind, item, listed=True)]
        changed |= {ref for item in news if (ref := ref_of(kind, item)) is not None}
    return listed, as_of, changed


def listing(world: World, kind: str, *, heads: bool) -> AsyncIterator[tuple[list[Object], int]]:
    """What the operator watches of a kind, page by page."""
    return world.kube.pages(kind, world.settings.namespace or None, selector_of(kind), heads=heads)


async def resync(world: World) -> None:
    """Fill the cache again, for ever."""
    for number, seconds in enumerate(periods(world.settings.resync_seconds), 1):
        await asyncio.sleep(seconds * random.uniform(0.9, 1.1))  # noqa: S311 no secret
        try:
            await fill_cache(world, routine=number > 1)
            set_aside(whole=number % WHOLE_EVERY == 0)
        except ApiError as error:
            log.warning("resync failed, tried again at the next one: %s", error.message)


def periods(usual_s: float) -> Iterator[float]:
    """Seconds before each resync: soon after the start, then as is usual.

    What is deleted between the first sync and the beginning of kopf's watches is in no event, and that may be a while.
    """
    yield from (min(early_s, usual_s) for early_s in EARLY_S)
    yield from itertools.repeat(usual_s)


async def first_sync(world: World, within_s: float = FIRST_SYNC_S) -> None:
    """Fill the cache before any pass: a pass on half a cache would take children for lost.

    An API server that is away is waited for: a process that ended would be started again by the kubelet's back-off,
    up to five minutes after the API server is back. Raises ApiError after so long.
    """
    end = time.monotonic() + within_s
    while True:
        try:
            await fill_cache(world)
        except ApiError as error:
            if time.monotonic() > end:
                raise
            log.warning("the API server does not answer as needed, asked again in %.0f s: %s", RETRY_S, error.message)
            await asyncio.sleep(RETRY_S)
        else:
            world.cache.synced = True
            set_aside(whole=True)
            return


def set_aside(*, whole: bool) -> None:
    """Take what is cached out of the garbage collector's sight; `whole`: after a look at all that was set aside before.

    Each full collection would look through all of it, and nothing else runs meanwhile: hundreds of resources are tenths
    of a second. What nobody needs any more is still freed, since what is cached has no cycles.
    """
    if whole:
        gc.unfreeze()
    gc.collect()
    gc.freeze()
