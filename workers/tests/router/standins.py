"""Stand-ins on real sockets: workers that say what a test tells them to, and an API server for one list and watch."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from tandem_router.app import Face
from tandem_router.attempts import Attempts, Bell, new_session
from tandem_router.engines.base import Engine
from tandem_router.engines.tandem import TandemEngine
from tandem_router.ledger import Ledger
from tandem_router.main import start
from tandem_router.overlap import Overlap
from tandem_router.proxy import Patience, Proxy
from tandem_router.slo import Targets
from tandem_router.tracing import OFF, Tracing
from tandem_router.worker import Role, Worker
from tandem_router.workers import Registry

Behaviour = Callable[[web.Request], Awaitable[web.StreamResponse]]
WITHIN_S = 10.0


def chunk(text: str | None = None, **more: Any) -> bytes:
    choices = (
        [] if text is None else [{"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}]
    )
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}
    return b"data: " + json.dumps({**head, **more}, separators=(",", ":")).encode() + b"\n\n"


TANDEM = {"kv_bytes": 4096, "prefill_worker": "p0", "decode_worker": "d0", "cached_tokens": 0}
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10, "tandem": TANDEM}
TOKENS = (chunk("Hel", usage=None), chunk("lo \u00e9\n", usage=None), chunk('"usage":{', usage=None))
USAGE_CHUNK = chunk(None, usage=USAGE)
DONE = b"data: [DONE]\n\n"


def streams(*pieces: bytes, then: str = "end", **headers: str) -> Behaviour:
    """A stream of these writes; `then`: "end", "die" (closed without the end of its body), "stall"."""

    async def behave(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "x-tandem-path": "disaggregated", **headers}
        )
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
            await asyncio.sleep(0)
        if then == "stall":
            await asyncio.sleep(3600)
        if then == "die":
            request.transport.close()
        return response

    return behave


def says(status: int, body: dict[str, Any], **headers: str) -> Behaviour:
    async def behave(request: web.Request) -> web.StreamResponse:
        return web.json_response(
            body, status=status, headers={name.replace("_", "-"): v for name, v in headers.items()}
        )

    return behave


async def dies(request: web.Request) -> web.StreamResponse:
    request.transport.abort()
    await asyncio.sleep(3600)
    raise AssertionError


async def stalls(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(3600)
    raise AssertionError


def error(message: str = "no") -> dict[str, Any]:
    return {"error": {"message": message, "type": "server_error", "param": None, "code": "x"}}


WELL = streams(*TOKENS, USAGE_CHUNK, DONE)
BAD_PAIR = says(503, error("prefill is gone"), x_tandem_retry="pair")
FULL = says(429, error("queue full"), Retry_After="3")


@dataclass
class StandIn:
    """One worker; `seen`: the requests that came; `gone` is set when a client of its left early."""

    name: str
    behaviour: Behaviour = WELL
    seen: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    runner: web.AppRunner | None = None
    address: str = ""

    async def start(self) -> None:
        app = web.Application(client_max_size=16 << 20)
        app.router.add_post("/{rest:.*}", self._serve)
        app.router.add_get("/v1/models", lambda _r: _models())
        self.runner = await start(app, "127.0.0.1", 0)
        host, port = self.runner.addresses[0][:2]
        self.address = f"{host}:{port}"

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.seen.append((dict(request.headers), await request.read()))
        try:
            return await self.behaviour(request)
        except (asyncio.CancelledError, ConnectionError):
            self.gone.set()
            raise

    def body(self, index: int = -1) -> dict[str, Any]:
        return json.loads(self.seen[index][1])


async def _models() -> web.Response:
    return web.json_response(
        {"object": "list", "data": [{"id": "m", "object": "model", "created": 1, "owned_by": "tandem"}]}
    )


def refusing_address() -> str:
    """An address at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


class World:
    """A router before stand-ins; `url` is its address."""

    def __init__(self, engine: Engine | None = None) -> None:
        self.patience = Patience()
        self.engine = engine or TandemEngine()
        self.workers: dict[str, StandIn] = {}
        self.bell = Bell()
        self.registry = Registry(self.bell.ring, works_alone=self.engine.works_alone)
        self.url = ""

    async def start(self, patience: Patience | None = None, tracing: Tracing = OFF) -> None:
        loop = asyncio.get_running_loop()
        self.ledger = Ledger(Targets(0.5, 0.04), loop.time)
        self.upstream = new_session()
        self.client = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=WITHIN_S))
        self.overlap = Overlap()
        attempts = Attempts(self.registry, self.bell, self.upstream, self.engine, self.ledger.metrics, self.overlap)
        self.proxy = Proxy(attempts, self.engine, self.ledger, patience or self.patience, tracing)
        self.runner = await start(Face(self.registry, self.upstream, self.ledger, self.proxy).app(), "127.0.0.1", 0)
        self.url = "http://{}:{}".format(*self.runner.addresses[0][:2])

    def patient(self, **changes: float) -> None:
        self.proxy._patience = Patience(**changes)

    async def worker(self, name: str, role: str = "decode", behaviour: Behaviour = WELL) -> StandIn:
        standin = StandIn(name, behaviour)
        await standin.start()
        self.workers[name] = standin
        self.know(name, role, standin.address)
        return standin

    def know(self, name: str, role: str, address: str, *, ready: bool = True) -> None:
        self.registry.put(Worker(name, address, f"kv-of-{name}:8001", Role(role), ready))

    async def standin(self, name: str, role: str, standin: StandIn) -> None:
        """A stand-in of another kind of worker."""
        await standin.start()
        self.workers[name] = standin
        self.know(name, role, standin.address)

    async def ask(
        self, body: dict[str, Any] | bytes, path: str = "/v1/chat/completions", **headers: str
    ) -> tuple[Any, bytes]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.client.post(self.url + path, data=data, headers=headers) as response:
            return response, await response.read()

    async def stream(self, **more: Any) -> tuple[Any, bytes]:
        return await self.ask({"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True, **more})

    def value(self, name: str, **labels: str) -> float:
        return self.ledger.metrics.registry.get_sample_value(f"tandem_router_{name}", labels) or 0.0

    async def idle(self) -> None:
        """Until no request is in flight, and nothing is booked on any worker."""
        await asyncio.wait_for(self.ledger.idle.wait(), WITHIN_S)
        for name in self.workers:
            load = self.registry.load(name)
            assert (load.requests, load.prefill_tokens) == (0, 0), name

    async def close(self) -> None:
        await self.client.close()
        await self.upstream.close()
        await self.runner.cleanup()
        for standin in self.workers.values():
            if standin.runner:
                await standin.runner.cleanup()


def pod(
    name: str,
    role: str | None = "decode",
    *,
    ready: bool = True,
    deleting: bool = False,
    ip: str = "10.0.0.1",
    version: str = "1",
) -> dict[str, Any]:
    """A pod, as the API server writes it (shortened)."""
    labels = {"tandem.dev/resource": "chat", "tandem.dev/component": "worker"} | (
        {"tandem.dev/role": role} if role else {}
    )
    metadata = {"name": name, "namespace": "ns", "labels": labels, "resourceVersion": version, "uid": f"uid-{name}"}
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    ports = [{"name": "http", "containerPort": 8000, "protocol": "TCP"}, {"name": "kv", "containerPort": 8001}]
    return {
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [{"name": "worker", "image": "x", "ports": ports}]},
        "status": {
            "phase": "Running",
            "podIP": ip,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


class Api:
    """Lists pods page by page and streams watch events; the test decides both."""

    def __init__(self) -> None:
        self.pods: list[dict[str, Any]] = []
        self.version = "10"
        self.page = 250
        self.lists: list[dict[str, str]] = []
        self.watches: list[dict[str, str]] = []
        self.tokens: list[str] = []
        self.refuse: list[int] = []  # statuses to answer the next calls with
        self.events: asyncio.Queue[dict[str, Any] | str | None] = asyncio.Queue()
        self.watching = asyncio.Event()

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/api/v1/namespaces/ns/pods", self._pods)
        self.runner = await start(app, "127.0.0.1", 0)
        self.url = "http://{}:{}".format(*self.runner.addresses[0][:2])

    async def _pods(self, request: web.Request) -> web.StreamResponse:
        self.tokens.append(request.headers.get("Authorization", ""))
        if self.refuse:
            return web.json_response(
                {"kind": "Status", "code": self.refuse[0], "message": "no"}, status=self.refuse.pop(0)
            )
        query = dict(request.query)
        assert query["labelSelector"] == "tandem.dev/resource=chat,tandem.dev/component=worker"
        return await self._watch(request, query) if query.get("watch") else self._list(query)

    def _list(self, query: dict[str, str]) -> web.Response:
        self.lists.append(query)
        begin = int(query.get("continue", 0))
        end = begin + self.page
        metadata = {"resourceVersion": self.version} | ({"continue": str(end)} if end < len(self.pods) else {})
        return web.json_response({"kind": "PodList", "metadata": metadata, "items": self.pods[begin:end]})

    async def _watch(self, request: web.Request, query: dict[str, str]) -> web.StreamResponse:
        self.watches.append(query)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        self.watching.set()
        while (event := await self.events.get()) is not None:
            if event == "die":
                request.transport.abort()
                break
            line = json.dumps(event).encode() + b"\n"
            await response.write(line[:20])  # a line may come in pieces
            await asyncio.sleep(0)
            await response.write(line[20:])
        self.watching.clear()
        return response

    def say(self, kind: str, thing: dict[str, Any]) -> None:
        self.events.put_nowait({"type": kind, "object": thing})

    async def close(self) -> None:
        self.events.put_nowait(None)
        await self.runner.cleanup()


async def until(true: Callable[[], Any], seconds: float = WITHIN_S) -> None:
    """Wait for a fact, with a deadline."""
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110 - the fact is another task's, it has no event
            await asyncio.sleep(0.005)


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
