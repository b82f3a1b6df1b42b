"""`tandem-router`: one process, one event loop."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import signal
import ssl
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import uvloop
from aiohttp import web

from tandem_router.access import Access, AccessError, find_access
from tandem_router.app import Face
from tandem_router.attempts import Attempts, Bell, new_session
from tandem_router.discovery import Discovery, Selection
from tandem_router.engines import ENGINES
from tandem_router.followers import Followers
from tandem_router.ledger import Ledger
from tandem_router.lobby import Lobby
from tandem_router.mounted import Certificate, Keys, Mounted, MountError, follow
from tandem_router.overlap import Overlap
from tandem_router.proxy import Patience, Proxy
from tandem_router.slo import Targets
from tandem_router.tracing import make_tracing
from tandem_router.workers import Registry

DRAIN_S = 25.0
# Endpoints take a moment to forget a pod that is going: it serves on for that long.
LAME_DUCK_S = 3.0
BACKLOG = 1024

log = logging.getLogger("tandem_router")


@dataclass(frozen=True, slots=True)
class Settings:
    """The flags."""

    selection: Selection
    host: str
    port: int
    targets: Targets
    patience: Patience
    engine: str = "tandem"
    keys_folder: Path | None = None
    tls_folder: Path | None = None
    tls_port: int = 8443
    hold_s: float = 0.0  # 0: a request waits for a worker only as long as a restart takes


def settings_of(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Flags, by default from POD_NAMESPACE, TANDEM_RESOURCE and POD_IP; ends the process if wrong."""
    parser = argparse.ArgumentParser("tandem-router", description="OpenAI API in front of a resource's workers.")

    def text(flag: str, variable: str, words: str) -> None:
        default = environment.get(variable) or None
        parser.add_argument(flag, default=default, required=default is None, help=f"{words} (default: ${variable})")

    text("--namespace", "POD_NAMESPACE", "namespace of the resource")
    text("--resource", "TANDEM_RESOURCE", "name of the DisaggregatedInference")
    text("--host", "POD_IP", "address to listen on")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--ttft-ms", type=_positive, required=True, help="the resource's TTFT target")
    parser.add_argument("--tpot-ms", type=_positive, required=True, help="the resource's TPOT target")
    parser.add_argument("--engine", choices=tuple(ENGINES), default="tandem", help="what the workers are")
    parser.add_argument("--first-byte-timeout", type=_positive, default=120.0, metavar="SECONDS")
    parser.add_argument(
        "--hold-seconds", type=_positive, default=0.0, help="hold requests this long while there is no worker at all"
    )
    parser.add_argument("--api-keys-dir", type=Path, metavar="DIR", help="each file holds a key that clients may use")
    parser.add_argument("--tls-dir", type=Path, metavar="DIR", help="tls.crt and tls.key: the API is HTTPS alone")
    parser.add_argument("--tls-port", type=int, default=8443)
    given = parser.parse_args(arguments)
    return Settings(
        selection=Selection(given.namespace, given.resource),
        host=given.host,
        port=given.port,
        targets=Targets(given.ttft_ms / 1000, given.tpot_ms / 1000),
        patience=Patience(first_byte=given.first_byte_timeout),
        engine=given.engine,
        keys_folder=given.api_keys_dir,
        tls_folder=given.tls_dir,
        tls_port=given.tls_port,
        hold_s=given.hold_seconds,
    )


def main() -> None:
    """Run until SIGTERM or SIGINT; code 2 and a line of reason when it cannot start."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    settings = settings_of(sys.argv[1:], os.environ)
    try:
        access = find_access(os.environ)
        door = door_of(settings)
    except (AccessError, MountError) as error:
        log.error("%s", error)  # noqa: TRY400 (the sentence is the whole story)
        raise SystemExit(2) from error
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings, access, door))


@dataclass(frozen=True, slots=True)
class Door:
    """Who may come in, and how: API keys and a certificate, where there are any."""

    keys: Keys | None = None
    certificate: Certificate | None = None

    def mounted(self) -> list[Mounted]:
        """What is followed."""
        return [part for part in (self.keys, self.certificate) if part is not None]


def door_of(settings: Settings) -> Door:
    """What the flags name, read. Raises MountError."""
    return Door(
        Keys(settings.keys_folder) if settings.keys_folder else None,
        Certificate(settings.tls_folder) if settings.tls_folder else None,
    )


async def serve(
    settings: Settings,
    access: Access,
    door: Door | None = None,
    *,
    stop: asyncio.Event | None = None,
    lame_duck_s: float = LAME_DUCK_S,
) -> None:
    """Serve until `stop` (default: SIGTERM or SIGINT), then drain."""
    stop = stop or _stop_on_signals()
    bell = Bell()
    ledger = Ledger(settings.targets, asyncio.get_running_loop().time)
    engine = ENGINES[settings.engine]()
    registry = Registry(works_alone=engine.works_alone)

    def changed() -> None:
        ledger.metrics.workers(registry.serving())
        if settings.engine == "tandem":  # others tell of their pages in ways of their own
            caches.sync(registry.workers)
        bell.ring()

    async with new_session() as workers, aiohttp.ClientSession() as api:
        overlap = Overlap()
        caches = Followers(workers, overlap)
        registry.on_change = changed
        attempts = Attempts(registry, bell, workers, engine, ledger.metrics, overlap)
        tracing = make_tracing(os.environ, "tandem-router", os.environ.get("POD_NAME", settings.host))
        lobby = Lobby(registry, bell, settings.hold_s, ledger.metrics.held.set)
        proxy = Proxy(attempts, engine, ledger, settings.patience, tracing, lobby)
        watch = asyncio.create_task(Discovery(api, access, settings.selection, registry).run(), name="discovery")
        watch.add_done_callback(lambda _done: stop.set())  # it never ends by itself but by a fault: do not serve blind
        door = door or Door()
        followers = [asyncio.create_task(follow(part), name="mounted") for part in door.mounted()]
        runners = await open_door(Face(registry, workers, ledger, proxy, holds=settings.hold_s > 0), door, settings)
        log.info("serving %s on %s:%d", settings.selection.resource, settings.host, settings.port)
        gc.freeze()
        await stop.wait()
        await drain(proxy, ledger, lame_duck_s)
        for runner in runners:
            await runner.cleanup()
        for follower in followers:
            follower.cancel()
        await caches.close()
        await asyncio.to_thread(tracing.close)
        await _end(watch)


async def open_door(face: Face, door: Door, settings: Settings) -> list[web.AppRunner]:
    """Listen: with a certificate the API is HTTPS alone, and the plain port has what kubelet and Prometheus look at."""
    if door.certificate is None:
        return [await start(face.app(door.keys), settings.host, settings.port)]
    return [
        await start(face.app(door.keys), settings.host, settings.tls_port, door.certificate.context),
        await start(face.looks(), settings.host, settings.port),
    ]


async def start(app: web.Application, host: str, port: int, tls: ssl.SSLContext | None = None) -> web.AppRunner:
    """Listen. A client that leaves cancels its handler: that is how its work is ended upstream."""
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, host, port, backlog=BACKLOG, ssl_context=tls).start()
    return runner


async def drain(proxy: Proxy, ledger: Ledger, lame_duck_s: float) -> None:
    """Fail readiness, serve on while endpoints forget us, then until nothing is in flight; 25 s in all."""
    proxy.draining = True
    log.info("draining: %d requests in flight", ledger.inflight)
    await asyncio.sleep(lame_duck_s)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(ledger.idle.wait(), DRAIN_S - lame_duck_s)
    if ledger.inflight:
        log.warning("%d requests are cut off after %.0f s of draining", ledger.inflight, DRAIN_S)


async def _end(watch: asyncio.Task[None]) -> None:
    if watch.done() and not watch.cancelled() and (fault := watch.exception()):
        raise fault
    watch.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watch


def _stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text} must be positive")
    return value


if __name__ == "__main__":
    main()
