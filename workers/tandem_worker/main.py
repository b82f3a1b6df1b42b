"""`tandem-worker`: alive at once, ready when the model is loaded, and gone only after the last answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

import uvloop
from aiohttp import web

from tandem_worker.assembly import Assembled, assemble, load
from tandem_worker.engine import ModelLoadError
from tandem_worker.engine.device import CPU_KV_MIB
from tandem_worker.hub import HubError, fetched
from tandem_worker.metrics import Metrics
from tandem_worker.server.app import make_app
from tandem_worker.server.service import Phase, Service
from tandem_worker.settings import Settings, SettingsError, from_process, parse_settings
from tandem_worker.tracing import make_tracing
from tandem_worker.transfer import preflight
from tandem_worker.transfer.base import BackendError
from tandem_worker.transfer.nixl import Nixl, leave

LOG = logging.getLogger("tandem_worker")
TERMINATION_LOG: Final = Path("/dev/termination-log")
CANNOT_START: Final = 2
CANNOT_SERVE: Final = 3  # not the settings' fault: start again
LOST_S: Final = 5.0
DRAIN_S: Final = 25.0  # below the pod's 30 s of grace
DRAIN_AT_LEAST_S: Final = 1.0  # until routers have seen that this worker is not ready
LOOK_EVERY_S: Final = 0.05
FIRST_TOKEN_SLACK_S: Final = 60.0


def main() -> None:
    """Run until a signal. Exit codes: 0 stopped, 2 cannot serve this model or these settings, 3 it cannot go on."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    try:
        settings = parse_settings(sys.argv[1:], from_process())
    except SettingsError as error:
        sys.exit(give_up(str(error)))
    if problem := preflight.look(from_process().get("TANDEM_RDMA", ""), (settings.kv_memory_mib or CPU_KV_MIB) << 20):
        LOG.warning("%s", problem)
    code = uvloop.run(Worker(settings).run())
    if settings.backend == Nixl.name:
        leave(code)
    sys.exit(code)


def with_files(settings: Settings) -> Settings:
    """The settings with the model's folder, a hub's model fetched into it. Raises HubError."""
    return replace(settings, model=fetched(settings.hub, settings.revision)) if settings.hub else settings


def give_up(reason: str, code: int = CANNOT_START) -> int:
    """One line to stderr and to the kubelet; the exit code."""
    line = " ".join(reason.split())
    sys.stderr.write(f"tandem-worker: {line}\n")
    # Outside a pod there is no such file, and making one there is nobody's wish.
    if TERMINATION_LOG.exists():
        with contextlib.suppress(OSError):
            TERMINATION_LOG.write_text(line[:4096])
    return code


class Worker:
    """One process' life."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._metrics = Metrics()
        first_token_s = settings.prefill_timeout_s + FIRST_TOKEN_SLACK_S
        self._tracing = make_tracing(from_process(), "tandem-worker", settings.worker)
        self._service = Service(settings.served_name, settings.worker, self._metrics, first_token_s, self._tracing)
        self._stop = asyncio.Event()

    async def run(self) -> int:
        """Returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        runner = web.AppRunner(make_app(self._service), handler_cancellation=True, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._settings.host, self._settings.port, shutdown_timeout=1.0).start()
            return await self._serve()
        except OSError as error:
            return give_up(f"cannot listen at {self._settings.host}: {error}")
        finally:
            await runner.cleanup()
            await asyncio.to_thread(self._tracing.close)

    async def _serve(self) -> int:
        begun = time.monotonic()
        stopped = asyncio.create_task(self._stop.wait())
        loading = asyncio.create_task(self._load())
        await asyncio.wait({stopped, loading}, return_when=asyncio.FIRST_COMPLETED)
        if not loading.done():
            # Nothing is under way yet, and the thread that loads cannot be asked to stop.
            logging.shutdown()
            os._exit(0)
        try:
            assembled = loading.result()
        except (ModelLoadError, BackendError) as error:
            return give_up(str(error))
        except HubError as error:
            return give_up(str(error), error.exit_code)
        self._metrics.loaded(time.monotonic() - begun)
        LOG.info("%s is ready", self._settings.served_name)
        return await self._until_the_end(assembled, stopped)

    async def _until_the_end(self, assembled: Assembled, stopped: asyncio.Task[Literal[True]]) -> int:
        lost, stuck = asyncio.create_task(assembled.lost()), asyncio.create_task(assembled.stuck())
        await asyncio.wait({stopped, lost, stuck}, return_when=asyncio.FIRST_COMPLETED)
        if lost.done():
            return await self._give_up_serving(assembled, lost.result())
        reason = stuck.result() if stuck.done() else ""
        if reason:
            LOG.error("the worker drains and ends: %s", reason)
        lost.cancel()
        stuck.cancel()
        await self._drain()
        if reason:
            return await self._give_up_serving(assembled, reason)
        await assembled.stop()
        return 0

    async def _give_up_serving(self, assembled: Assembled, reason: str) -> int:
        """Without a rank, the engine or room for pages: whoever is served is told, and the process ends at once."""
        self._service.phase = Phase.DRAINING
        try:
            async with asyncio.timeout(LOST_S):
                await assembled.stop()
        except Exception:  # the engine's thread waits for a lost rank; or what has ended it ends this too
            LOG.exception("the worker ends without an orderly stop")
            give_up(reason)
            os._exit(CANNOT_SERVE)
        give_up(reason)
        return CANNOT_SERVE

    async def _load(self) -> Assembled:
        settings = await asyncio.to_thread(with_files, self._settings)
        model = await asyncio.to_thread(load, settings)
        return await assemble(model, settings, self._service)

    async def _drain(self) -> None:
        """`/ready` fails from now on; wait for the answers that are under way, at most DRAIN_S."""
        self._service.phase = Phase.DRAINING
        begun = time.monotonic()
        while (passed := time.monotonic() - begun) < DRAIN_S:
            if passed >= DRAIN_AT_LEAST_S and not self._service.busy:
                return
            await asyncio.sleep(LOOK_EVERY_S)
        LOG.warning("%d requests were still under way after %.0f s", self._service.active, DRAIN_S)


if __name__ == "__main__":
    main()
