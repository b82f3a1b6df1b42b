"""`tandem-operator`: put the parts together, and run until a signal or a part that must not end."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING

import kopf

from tandem_operator.api.v1alpha1 import InvalidResourceError
from tandem_operator.edges.errors import ApiError
from tandem_operator.edges.kube import Kube, connect
from tandem_operator.edges.prometheus import Prometheus
from tandem_operator.loop.budget import watch_budget
from tandem_operator.loop.cache import Cache
from tandem_operator.loop.fleet import Fleet, Subject, watch_fleet
from tandem_operator.loop.handlers import registry_for, settings_for
from tandem_operator.loop.leader import SETTLE_S, Leader, LostLeadershipError
from tandem_operator.loop.metrics import Metrics
from tandem_operator.loop.nodes import prepare_nodes
from tandem_operator.loop.observe import parse
from tandem_operator.loop.queue import Queue, work
from tandem_operator.loop.reconcile import reconcile
from tandem_operator.loop.record import Recorder
from tandem_operator.loop.resync import first_sync, resync
from tandem_operator.loop.settings import Settings, SettingsError, from_environment
from tandem_operator.loop.web import application, serve
from tandem_operator.loop.world import World
from tandem_operator.plan.facts import Slo
from tandem_operator.plan.limits import steadiness_of

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from tandem_operator.loop.refs import Ref

log = logging.getLogger(__name__)
PASS_DEADLINE_S = 120.0
CANCEL_AGAIN_S, CANCELS = 5.0, 4
YOUNG = 10_000  # objects made before the collector looks at them: an event's are more than its default 700


def world_of(settings: Settings, kube: Kube) -> World:
    """A fresh world: empty cache, empty queue, no history."""
    source = Prometheus(settings.prometheus_url, settings.metrics_window_seconds, settings.namespace)
    return World(
        settings=settings,
        kube=kube,
        cache=Cache(),
        fleet=Fleet(source, settings.metrics_window_seconds),
        queue=Queue(),
        recorder=Recorder(settings.record_path),
        metrics=Metrics(),
    )


def subjects(world: World) -> list[Subject]:
    """Every readable resource, for the fleet observer."""
    read: dict[Ref, tuple[str, Subject | None]] = {}
    for ref, body in world.cache.resources():
        version = f"{body['metadata']['uid']} {body['metadata']['generation']}"
        known = world.subjects.get(ref)
        read[ref] = known if known and known[0] == version else (version, subject_of(ref, body))
    world.subjects = read
    return [subject for _, subject in read.values() if subject is not None]


def subject_of(ref: Ref, body: dict[str, Any]) -> Subject | None:
    """What the observer must know; None of a resource that cannot be read: its own pass says so in its status."""
    try:
        spec = parse(body).spec
    except InvalidResourceError:
        return None
    slo = Slo(spec.slo.ttft_milliseconds, spec.slo.tpot_milliseconds, spec.slo.percentile)
    calm = steadiness_of(spec.rebalance.behavior).down_window_s
    moments = (calm, spec.scale_to_zero.after_seconds) if spec.scale_to_zero is not None else (calm,)
    return Subject(ref, slo, spec.rebalance.interval_seconds, max(moments), moments)


async def run(world: World, leader: Leader, stop: asyncio.Event) -> None:
    """Show the pages, and once the cache is whole run all parts, until `stop`."""
    settings = world.settings
    runner = await serve(
        application(world.queue, world.metrics, world.cache), settings.listen_host, settings.listen_port
    )
    try:
        await until_first([first_sync(world)], stop)
        if not stop.is_set():
            await run_parts(world, leader, stop)
    finally:
        await runner.cleanup()


async def run_parts(world: World, leader: Leader, stop: asyncio.Event) -> None:
    """A part that ends by itself ends the operator, and the kubelet starts it anew."""
    settings = world.settings
    if not settings.elect:
        leader.appoint()
    led: list[Coroutine[Any, Any, None]] = [
        watch_budget(world),
        prepare_nodes(world),
        watch_fleet(world.fleet, lambda: subjects(world), world.queue.mark_routine),
        # Half of the workers wait for what somebody asked for: all passes share one event loop with the watches, and
        # looks at hundreds of resources at once would leave little of it.
        *(
            work(world.queue, lambda ref: reconcile(world, ref), PASS_DEADLINE_S, routine=number % 2 == 0)
            for number in range(settings.reconcile_workers)
        ),
    ]
    # Whoever waits watches on, so that it begins with all it needs.
    parts: list[Coroutine[Any, Any, Any]] = [watch(world, stop), resync(world), *map(leader.after_election, led)]
    if settings.elect:
        parts.append(leader.run())
    try:
        await until_first(parts, stop)
        if not stop.is_set():
            raise RuntimeError("a part of the operator ended that must not")
    finally:
        if settings.elect:
            await leader.release()


async def until_first(parts: list[Coroutine[Any, Any, Any]], stop: asyncio.Event) -> None:
    """Run these until one has ended, with its error if it has one, or until `stop`; then none of them runs."""
    tasks = [asyncio.create_task(part) for part in parts]
    stopped = asyncio.create_task(stop.wait())
    try:
        done, _ = await asyncio.wait([*tasks, stopped], return_when=asyncio.FIRST_COMPLETED)
        if not stop.is_set():
            for task in done:
                task.result()
    finally:
        await end(*tasks, stopped)


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel until all have ended: a cancellation that comes as a task's work ends can be lost in a library."""
    left = set(tasks)
    for _ in range(CANCELS):
        for task in left:
            task.cancel()
        ended, left = await asyncio.wait(left, timeout=CANCEL_AGAIN_S)
        await asyncio.gather(*ended, return_exceptions=True)
        if not left:
            return
    log.error("%d parts of the operator do not end: the process is", len(left))
    os._exit(1)  # asyncio.run would wait for them for ever; the Lease runs out by itself


async def watch(world: World, stop: asyncio.Event) -> None:
    """Kopf, with our handlers, settings and stop flag."""
    settings = kopf.OperatorSettings()
    settings_for(settings, world.settings.namespace)
    await kopf.operator(
        registry=registry_for(world.cache, world.queue),
        settings=settings,
        identity=world.settings.pod_name,  # kopf would look the user up, and a pod's user has no entry
        standalone=True,
        clusterwide=not world.settings.namespace,
        namespaces=[world.settings.namespace] if world.settings.namespace else [],
        stop_flag=stop,
    )
    # Kopf takes SIGTERM and SIGINT itself: it ends without an error only where it was told to.
    stop.set()


async def start(settings: Settings) -> None:
    """Connect, and run until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with await connect() as client:
        settle_s = SETTLE_S if settings.namespace else 0.0
        leader = Leader(Kube(client), settings.lease_namespace, settings.pod_name, settle_s=settle_s)
        await run(world_of(settings, Kube(client, may_write=leader.holds)), leader, stop)


def main() -> int:
    """Entry point; 2 for settings that are wrong, 1 for a part that failed."""
    try:
        settings = from_environment(os.environ)
    except SettingsError as error:
        sys.stderr.write(f"tandem-operator: {error}\n")
        return 2
    logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kopf").setLevel(logging.WARNING)
    gc.set_threshold(YOUNG)
    try:
        asyncio.run(start(settings))
    except ApiError as error:
        log.error("%s: %s", error.reason, error.message)  # noqa: TRY400 the sentence says all
        return 1
    except LostLeadershipError as error:
        log.error("%s", error)  # noqa: TRY400 the kubelet starts a new one, which waits
        return 1
    return 0
