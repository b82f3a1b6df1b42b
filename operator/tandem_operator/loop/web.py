"""The operator's pages: /healthz and /readyz for the kubelet, /metrics and /targets for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client import generate_latest

from tandem_operator.loop.targets import targets_of

if TYPE_CHECKING:
    from tandem_operator.loop.cache import Cache
    from tandem_operator.loop.metrics import Metrics
    from tandem_operator.loop.queue import Queue

TOO_LONG_S = 180.0  # a pass has a deadline well below this; one that is older hangs


def application(queue: Queue, metrics: Metrics, cache: Cache) -> web.Application:
    """The pages; all are small and ask nobody."""

    async def health(_: web.Request) -> web.Response:
        oldest = queue.oldest_pass_s()
        status = 503 if oldest > TOO_LONG_S else 200
        return web.json_response({"oldest_pass_seconds": round(oldest, 1)}, status=status)

    async def ready(_: web.Request) -> web.Response:
        return web.json_response({"synced": cache.synced}, status=200 if cache.synced else 503)

    async def show_metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(metrics.registry), content_type="text/plain", charset="utf-8")

    async def show_targets(_: web.Request) -> web.Response:
        if not cache.synced:
            raise web.HTTPServiceUnavailable(text="not all pods are known yet")  # Prometheus keeps what it has
        return web.json_response(targets_of(cache.all("Pod")))

    app = web.Application()
    app.router.add_get("/targets", show_targets)
    app.router.add_get("/healthz", health)
    app.router.add_get("/readyz", ready)
    app.router.add_get("/metrics", show_metrics)
    return app


async def serve(app: web.Application, host: str, port: int) -> web.AppRunner:
    """Listen; the caller cleans the runner up."""
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner
