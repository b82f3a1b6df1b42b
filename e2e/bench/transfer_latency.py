"""What a transfer adds to a request: two workers with SmolLM2, one process and thread each, prompts of several lengths.

Times of both processes are of the machine's one monotonic clock. "The listener" is whoever waits in the decode worker,
"the client" has a socket to its API, and a process of its own: what JSON, HTTP and the kernel take is in it.
"""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import statistics
import time
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import torch
import uvloop
from aiohttp import web

from e2e.bench.engine import limits
from e2e.bench.table import Row, against
from e2e.bench.transfer_client import first_token_at
from e2e.harness.kube import REPO
from tandem_worker.assembly import Assembled, assemble, load
from tandem_worker.engine import Sampling
from tandem_worker.metrics import Metrics
from tandem_worker.server.app import make_app
from tandem_worker.server.service import Service
from tandem_worker.settings import Settings, parse_settings
from tandem_worker.transfer import prefill_side

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from multiprocessing.connection import Connection

    from tandem_worker.engine import ModelInfo, Token
    from tandem_worker.transfer.pull import Failure

MODEL: Final = REPO / "build/models/smollm2-135m-instruct"
LENGTHS: Final = (600, 1024, 2048)
TOKENS: Final = 8
WITHIN_S: Final = 120.0
NAME: Final = "bench"


class Told(Metrics):
    """The worker's metrics, which also keep when what was said."""

    def __init__(self) -> None:
        super().__init__()
        self.prefills: list[float] = []
        self.sampled: list[float] = []
        self.commits: list[float] = []

    def prefilled(self, seconds: float) -> None:
        """See Meter."""
        self.prefills.append(seconds)
        super().prefilled(seconds)

    def transferred(self, seconds: float, ttft_s: float) -> None:
        """See Meter."""
        self.commits.append(time.monotonic())
        super().transferred(seconds, ttft_s)


@dataclass
class Ear:
    """A request's listener: when each token came."""

    tokens: list[float] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    failure: Failure | None = None

    def on_granted(self, first_page: int) -> None:
        """See Listener."""

    def on_pages(self, byte_count: int) -> None:
        """See Listener."""

    def on_token(self, token: Token) -> None:
        """See Listener."""
        self.tokens.append(time.monotonic())
        if token.finish:
            self.over.set()

    def on_failed(self, failure: Failure) -> None:
        """See Listener."""
        self.failure = failure
        self.over.set()


@dataclass(frozen=True, slots=True)
class Seen:
    """One request, in seconds."""

    ttft: float
    prefill: float
    hop: float  # from the first token's sampling to the listener
    client: float  # the same to a client's socket
    own: float  # from the commit to the decode worker's own first token
    step: float  # between two later tokens: what a step takes that begins at once


def settings_of(backend: str, threads: int) -> Settings:
    """A worker of this bench."""
    flags = ["--model", f"file://{MODEL}", "--max-context", "4096", "--port", "0", "--kv-port", "0"]
    flags += ["--threads", str(threads), "--transfer-backend", backend]
    return parse_settings(flags, {"TANDEM_TRANSFER_KEY": "7" * 64})


async def start(backend: str, threads: int, service: Service) -> Assembled:
    """A worker without its HTTP side."""
    settings = settings_of(backend, threads)
    return await assemble(load(settings), settings, service)


def service_of(told: Told) -> Service:
    """What its API serves."""
    return Service(NAME, "bench", told, WITHIN_S)


@asynccontextmanager
async def api(service: Service) -> AsyncIterator[int]:
    """Its HTTP side; the port."""
    runner = web.AppRunner(make_app(service), handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield runner.addresses[0][1]
    await runner.cleanup()


def serve(pipe: Connection, backend: str, threads: int) -> None:
    """The prefill worker's process: says its port, then what its last prefill took and when it was sampled."""
    torch.set_num_threads(threads)
    told = Told()
    remember_samples(told)

    async def run() -> None:
        worker = await start(backend, threads, service_of(told))
        pipe.send(worker.kv_port)
        while await asyncio.to_thread(pipe.recv):
            pipe.send((told.prefills[-1], told.sampled[-1]))
        await worker.stop()

    uvloop.run(run())


def remember_samples(told: Told) -> None:
    """When the engine's own thread has a first token, before it tells anybody."""
    tell: Callable[[Any, Any], None] = prefill_side.Sink.on_first

    def on_first(sink: prefill_side.Sink, token: Token) -> None:
        told.sampled.append(time.monotonic())
        tell(sink, token)

    prefill_side.Sink.on_first = on_first  # type: ignore[assignment,method-assign]


def latencies(backend: str, repeats: int, threads: int) -> list[Row]:
    """Rows for each prompt length."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(there, backend, threads))
    process.start()
    try:
        seen, info = uvloop.run(measure(backend, here, repeats, threads))
    finally:
        here.send(False)
        process.join(10)
        process.kill()
    read = limits(threads, time.perf_counter)["read_gb_s"]
    name = f"{backend}: read stream of {threads} thread{'s' * (threads > 1)}"
    return [Row(name, read, "GB/s", n=5)] + [
        row
        for length, requests in seen.items()
        for row in rows_of(f"{backend}, {length} tokens", requests, bytes_of_step(info, length) / read / 1e6)
    ]


def bytes_of_step(info: ModelInfo, context: int) -> float:
    """What a decode step of one sequence must read at least: every weight once, and its KV."""
    kv = info.layers * 2 * info.kv_heads * info.head_dim * info.element_bytes
    return info.parameters * info.element_bytes + context * kv


async def measure(
    backend: str, pipe: Connection, repeats: int, threads: int
) -> tuple[dict[int, list[Seen]], ModelInfo]:
    """Each length `repeats` times, after one that warms up."""
    told = Told()
    worker = await start(backend, threads, service := service_of(told))
    address = ("127.0.0.1", await asyncio.to_thread(pipe.recv))
    link = await worker.node.peers.get(address)
    seen: dict[int, list[Seen]] = {}
    number = 0
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        async with api(service) as port:
            for length in LENGTHS:
                for _ in range(repeats + 1):
                    number += 2
                    heard = await one(worker, link, told, pipe, number, length)
                    client = await by_socket(pool, port, f"127.0.0.1:{address[1]}", pipe, number + 1, length)
                    seen.setdefault(length, []).append(replace(heard, client=client))
    await worker.stop()
    return {length: requests[1:] for length, requests in seen.items()}, worker.engine.info


def prompt_of(number: int, length: int) -> list[int]:
    """No two share a page."""
    return [(number * 7919 + at * 31) % 40_000 + 100 for at in range(length)]


async def by_socket(pool: Executor, port: int, prefill: str, pipe: Connection, number: int, length: int) -> float:
    """One request more, by the API: seconds from the sampling to the client."""
    facts = (port, prefill, NAME, prompt_of(number, length), TOKENS)
    seen = await asyncio.get_running_loop().run_in_executor(pool, first_token_at, *facts)
    pipe.send(True)
    _, sampled = await asyncio.to_thread(pipe.recv)
    return seen - float(sampled)


async def one(worker: Assembled, link: Any, told: Told, pipe: Connection, number: int, length: int) -> Seen:
    """One request, but for what a client would see."""
    prompt = prompt_of(number, length)
    ear = Ear()
    begun = time.monotonic()
    worker.node.decode.ask(link, f"r{number}", prompt, Sampling(max_tokens=TOKENS, ignore_eos=True), ear)
    async with asyncio.timeout(WITHIN_S):
        await ear.over.wait()
    if ear.failure is not None:
        raise RuntimeError(ear.failure.reason)
    pipe.send(True)
    prefill, sampled = await asyncio.to_thread(pipe.recv)
    step = statistics.median(later - earlier for earlier, later in pairwise(ear.tokens[1:]))
    own = ear.tokens[1] - told.commits[-1]
    return Seen(ear.tokens[0] - begun, prefill, ear.tokens[0] - sampled, math.nan, own, step)


def rows_of(name: str, requests: list[Seen], least: float) -> list[Row]:
    """Medians, in milliseconds, beside what they must not exceed. `least`: of a decode step, by the read stream."""
    n = len(requests)
    prefill, added, hop, client, own, step = (
        1000 * statistics.median(values)
        for values in (
            [one.prefill for one in requests],
            [one.ttft - one.prefill for one in requests],
            [one.hop for one in requests],
            [one.client for one in requests],
            [one.own for one in requests],
            [one.step for one in requests],
        )
    )
    return [
        Row(f"{name}: prefill", prefill, "ms", n=n),
        against(f"{name}: added to TTFT (beside 2 % of the prefill)", added, "ms", 0.02 * prefill, n),
        against(f"{name}: sampled to D's listener (beside 3 ms)", hop, "ms", 3.0, n),
        against(f"{name}: sampled to a client's socket (beside 3 ms)", client, "ms", 3.0, n),
        against(f"{name}: commit to D's own first token (beside 10 ms)", own, "ms", 10.0, n),
        against(f"{name}: the same beside a later step", own, "ms", step, n),
        against(f"{name}: a later step beside reading weights and KV once", step, "ms", least, n),
    ]
