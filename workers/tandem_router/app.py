"""The router's HTTP face: an allow-list of paths; everything else is a 404 in OpenAI's words."""

from __future__ import annotations

import aiohttp
from aiohttp import web

from tandem_router.engines.base import BrokenStreamError
from tandem_router.errors import RefusedError, refusal
from tandem_router.ledger import Ledger
from tandem_router.mail import CONNECT_S, whole
from tandem_router.mounted import Keys
from tandem_router.placement import Pair
from tandem_router.proxy import MAX_BODY, Proxy
from tandem_router.workers import Registry

COMPLETIONS = ("/v1/chat/completions", "/v1/completions")
TOKENS = ("/tokenize", "/detokenize")
LOOKS = ("/v1/models", "/health", "/ready", "/metrics")
ANSWER_S = 5.0
ANSWER_TRIES = 3


class Face:
    """Everything but completions, which `Proxy` serves. `synced` becomes true with the first list of workers."""

    def __init__(
        self, registry: Registry, session: aiohttp.ClientSession, ledger: Ledger, proxy: Proxy, *, holds: bool = False
    ) -> None:
        """holds: requests are held while no worker is there, so that clients may come all the same."""
        self._holds = holds
        self._registry = registry
        self._session = session
        self._ledger = ledger
        self._proxy = proxy

    def app(self, keys: Keys | None = None) -> web.Application:
        """All routes; with `keys`, the API is for those who have one."""
        guards = [keys.guard((*COMPLETIONS, "/v1/models"))] if keys else []
        app = web.Application(client_max_size=MAX_BODY, middlewares=guards)
        for path in COMPLETIONS:
            app.router.add_post(path, self._proxy.completion)
        for path in TOKENS:
            app.router.add_post(path, self.tokens)
        app.router.add_get("/v1/models", self.models)
        return self._with_looks(app)

    def looks(self) -> web.Application:
        """What the kubelet and Prometheus look at, and nothing of the API."""
        return self._with_looks(web.Application(client_max_size=0))

    def _with_looks(self, app: web.Application) -> web.Application:
        app.router.add_get("/health", self.health)
        app.router.add_get("/ready", self.ready)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_route("*", "/{rest:.*}", self.nowhere)
        return app

    async def health(self, _request: web.Request) -> web.Response:
        """The process is alive."""
        return web.Response(text="ok\n")

    async def ready(self, request: web.Request) -> web.Response:
        """May clients come? Not while draining, and not before a worker that can serve is known."""
        if self._proxy.draining:
            return web.Response(status=503, text="draining\n")
        if self._holds and self._registry.listed:
            return web.Response(text="ok\n")
        choice = self._registry.can_place(_now(request))
        if isinstance(choice, Pair):
            return web.Response(text="ok\n")
        return web.Response(status=503, text=f"{choice.reason}\n")

    async def metrics(self, _request: web.Request) -> web.Response:
        """Prometheus' text format."""
        return web.Response(
            body=self._ledger.metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    async def models(self, _request: web.Request) -> web.Response:
        """The list of the first worker that gives one: all workers of a resource serve the same model."""
        return await self._any_worker("GET", "/v1/models", b"")

    async def tokens(self, request: web.Request) -> web.Response:
        """/tokenize and /detokenize: any worker's tokenizer is everybody's."""
        try:
            return await self._any_worker("POST", request.path, await self._proxy.body(request))
        except RefusedError as error:
            return refusal(error)

    async def _any_worker(self, method: str, path: str, body: bytes) -> web.Response:
        """The first answer that is the client's: good, or a refusal of what it asked."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_S, sock_connect=CONNECT_S)
        troubles = []
        for worker in [w for w in self._registry.workers if w.can_serve][:ANSWER_TRIES]:
            try:
                async with self._session.request(
                    method, f"http://{worker.address}{path}", data=body or None, timeout=timeout, allow_redirects=False
                ) as response:
                    if response.status < 500:
                        answer = await whole(response)
                        return web.Response(status=response.status, body=answer, content_type="application/json")
                    troubles.append(f"{worker.name} answered {response.status}")
            except (aiohttp.ClientError, TimeoutError, OSError, BrokenStreamError) as error:
                troubles.append(f"{worker.name}: {type(error).__name__} {error}")
        words = "; ".join(troubles) or "no worker is ready"
        return refusal(RefusedError(503, f"No worker answered {path}: {words}.", "no_worker", retry_after_s=1))

    async def nowhere(self, request: web.Request) -> web.Response:
        """A path or a method that is not served."""
        if request.path in (*COMPLETIONS, *TOKENS, *LOOKS):
            return refusal(
                RefusedError(405, f"{request.method} is not a method of {request.path}.", "method_not_allowed")
            )
        return refusal(RefusedError(404, f"There is no {request.method} {request.path} here.", "unknown_url"))


def _now(request: web.Request) -> float:
    return request.loop.time()
