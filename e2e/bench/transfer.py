"""`make bench-transfer`: how fast pages move between two processes, beside a plain socket copy and one memcpy.

Both ends are the worker's own connection, frames and backends; only the engine is left out: pages come from one tensor
and go into another by the KV store's own index copy. Ratios hold within one run on one machine with nothing else on it.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
import uvloop

from e2e.bench.performance import put
from e2e.bench.table import Row, against, write
from e2e.bench.transfer_bases import BASES, cpu_s
from e2e.bench.transfer_latency import latencies
from e2e.bench.transfer_saved import saved_share
from tandem_worker.engine.lending import Loan, runs
from tandem_worker.engine.memory import memory_file, own_memory
from tandem_worker.transfer.backends import NAMES, make_backend
from tandem_worker.transfer.base import Meter
from tandem_worker.transfer.frames import Frames
from tandem_worker.transfer.handshake import Identity, new_incarnation
from tandem_worker.transfer.nixl import leave
from tandem_worker.transfer.peers import Listening, Peers
from tandem_worker.transfer.terms import Terms
from tandem_worker.transfer.wire import Chunk, Commit, Generation, Prefill, SamplingFields

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from tandem_worker.transfer.base import Channel
    from tandem_worker.transfer.wire import AnyMessage

KEY: Final = bytes(32)
SIZES: Final = "64KiB,1MiB,16MiB,64MiB,256MiB,1GiB"
UNITS: Final = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
PAGE_TOKENS, LAYERS, KV_HEADS, HEAD_DIM = 16, 30, 3, 64  # SmolLM2-135M: pages of 368,640 B in bf16
DIRECTORY: Final = Path(tempfile.gettempdir())


def parse_sizes(text: str) -> dict[str, int]:
    """`64KiB,1GiB` → name → bytes. Raises KeyError for another unit."""
    return {word: int(word[:-3]) * UNITS[word[-3:]] for word in text.split(",")}


def identity(backend: str) -> Identity:
    """A worker of this bench."""
    return Identity(
        model="bench",
        config_hash="bench",
        dtype="bfloat16",
        page_tokens=PAGE_TOKENS,
        layers=LAYERS,
        kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        worker="bench",
        incarnation=new_incarnation(),
        backend=backend,
    )


class Agreed(Meter):
    """Hears how pages travel."""

    def __init__(self) -> None:
        self.backend = ""
        self.change = asyncio.Event()

    def linked(self, backend: str, change: int) -> None:
        """See Meter."""
        if change > 0:
            self.backend = backend
            self.change.set()


class Half:
    """What both ends share: an owner of connections whose pages lie in one tensor."""

    def __init__(self, backend: str, most: int) -> None:
        self.identity = identity(backend)
        self.frames = Frames(self.identity)
        size = max(1, most // self.frames.page_bytes) * self.frames.page_bytes
        file = memory_file(size) if backend == "shm" else None
        store = own_memory(size) if file is None else file.bytes
        store.fill_(1)
        self.raw: memoryview = store.numpy().data
        made = make_backend(backend, DIRECTORY, "127.0.0.1")
        made.open(self.raw, file)
        self.meter = Agreed()
        self.terms = Terms(self.identity, KEY, self.frames.page_bytes, self.frames.frame_bytes, made, self.meter)

    def place(self, channel: Channel, chunk: Chunk) -> list[memoryview]:  # noqa: ARG002
        """As Engine.open_pages does for pages that are neighbours."""
        start = chunk.first_page * self.frames.page_bytes
        return [self.raw[start : start + chunk.pages * self.frames.page_bytes]]

    def landed(self, channel: Channel, chunk: Chunk) -> None:
        """The commit says the rest."""

    def on_closed(self, channel: Channel, reason: str) -> None:
        """The other process has ended."""

    def on_sent(self, channel: Channel, generation: Generation) -> None:
        """All is taken."""


class Writer(Half):
    """Pushes as many pages as it is asked for."""

    def on_message(self, channel: Channel, message: AnyMessage, body: memoryview) -> None:
        """`prefill` asks for that many pages."""
        if isinstance(message, Prefill):
            generation = Generation(1, message.have_pages + 1)
            pages = int.from_bytes(body[:4], "little")
            size = self.frames.page_bytes
            self.frames.push(channel, generation, 0, Loan(range(pages), size, partial(runs, self.raw, size)))
            channel.finish(generation, Commit(generation=generation, pages=pages))


class Reader(Half):
    """Takes pages into its store, and is told when all are there."""

    def __init__(self, backend: str, most: int) -> None:
        super().__init__(backend, most)
        self.done = asyncio.Event()
        self.asked = 0

    def on_message(self, channel: Channel, message: AnyMessage, body: memoryview) -> None:  # noqa: ARG002
        """The end."""
        if isinstance(message, Commit):
            self.done.set()

    async def pull(self, channel: Channel, pages: int) -> float:
        """Seconds from asking to the commit."""
        self.asked += 1
        self.done.clear()
        begun = time.perf_counter()
        ask = Prefill(request="bench", sampling=SamplingFields(max_tokens=1), have_pages=self.asked)
        channel.send(ask, pages.to_bytes(4, "little"))
        await self.done.wait()
        return time.perf_counter() - begun


def serve(pipe: Connection, backend: str, most: int) -> None:
    """The prefill worker's process: says its port, then its CPU seconds whenever it is asked; ends with the pipe."""
    torch.set_num_threads(1)

    async def run() -> None:
        listening = Listening((half := Writer(backend, most)).terms, half)
        pipe.send(await listening.start("127.0.0.1", 0))
        while await asyncio.to_thread(pipe.recv):
            pipe.send(cpu_s())
        await listening.close()
        half.terms.backend.close()

    uvloop.run(run())


async def measure(backend: str, sizes: dict[str, int], repeats: int) -> Iterator[Row]:
    """GB/s for each size, and CPU seconds per GiB of both sides."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    most = max(sizes.values())
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(there, backend, most))
    process.start()
    try:
        reader = Reader(backend, most)
        peers = Peers(reader.terms, reader)
        link = await peers.get(("127.0.0.1", here.recv()))
        if backend != "tcp":  # a lane is agreed on after the handshake
            await reader.meter.change.wait()
        return iter([row async for row in rows_of(backend, sizes, repeats, reader, link, here)])
    finally:
        here.send(False)
        process.join(10)


async def rows_of(
    backend: str, sizes: dict[str, int], repeats: int, reader: Reader, link: Any, pipe: Connection
) -> Any:
    """Each size `repeats` times after one that warms up."""
    for name, size in sizes.items():
        pages = max(1, size // reader.frames.page_bytes)
        await reader.pull(link, pages)
        before = both_cpu_s(pipe)
        seconds = [await reader.pull(link, pages) for _ in range(repeats)]
        moved = pages * reader.frames.page_bytes
        yield Row(f"{backend} {name}", moved / statistics.median(seconds) / 1e9, "GB/s", n=repeats)
        spent = (both_cpu_s(pipe) - before) / (repeats * moved / 2**30)
        yield Row(f"{backend} {name}: CPU of both sides", spent, "s/GiB", n=repeats)


def both_cpu_s(pipe: Connection) -> float:
    """CPU seconds of both processes so far."""
    pipe.send(True)
    return float(pipe.recv()) + cpu_s()


def names(text: str) -> list[str]:
    """`tcp,shm` → both; empty: none."""
    return [name for name in text.split(",") if name]


def side_by_side(backend: str, sizes: dict[str, int], repeats: int) -> list[Row]:
    """The bare means at 64 MiB (or the largest size), then the transfer at every size, held against it."""
    name, measure_base = BASES[backend]
    base = measure_base(min(max(sizes.values()), 64 * 2**20), repeats)
    rows = [Row(name, base.speed, "GB/s", n=repeats), Row(f"{name}: CPU of both sides", base.cpu, "s/GiB", n=repeats)]
    beside = {"GB/s": base.speed, "s/GiB": base.cpu}
    measured = uvloop.run(measure(backend, sizes, repeats))
    return rows + [against(row.metric, row.value or 0.0, row.unit, beside[row.unit], row.n) for row in measured]


def main() -> None:
    """Print the table and write build/bench/transfer.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--backends", default=",".join(NAMES))
    parser.add_argument("--latency", default="tcp,shm", help="backends whose latencies are measured; empty: none")
    parser.add_argument("--threads", type=int, default=2, help="of each engine: while one works the other waits")
    parser.add_argument("--requests-each", type=int, default=5, help="of each prompt length")
    parser.add_argument("--page", action="store_true", help="write the table into docs/reference/performance.md")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--requests", type=int, default=10**9, help="of the trace")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sizes = parse_sizes(options.sizes)
    rows: list[Row] = []
    for backend in names(options.backends):
        rows += side_by_side(backend, sizes, options.repeats)
    trace = options.data / "mooncake_conversation_trace.jsonl"
    if trace.is_file():
        for workers, by_overlap in product((4, 8, 16), (False, True)):
            share, counted = saved_share(trace, workers, options.requests, by_overlap=by_overlap)
            placed = "by overlap" if by_overlap else "in turn"
            rows.append(against(f"bytes saved, {workers} decode workers, placed {placed}", share, "share", counted))
    late = [
        row for backend in names(options.latency) for row in latencies(backend, options.requests_each, options.threads)
    ]
    write("transfer", rows + late)
    for section, part in (("transfer", rows), ("transfer-latency", late)) if options.page else ():
        if part:
            put(section, shlex.join(["python", "-m", "e2e.bench.transfer", *sys.argv[1:]]), part)
    leave(0)


if __name__ == "__main__":
    main()
