"""`make bench-transfer`: how fast pages move between two processes, beside a plain socket copy and one memcpy.

Both ends are the worker's own connection, frames and backends; only the engine is left out: pages come from one tensor
and go into another by the KV store's own index copy. Ratios hold within one run on one machine with nothing else on it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import resource
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
import uvloop

from e2e.bench.table import Row, against, write
from tandem_worker.engine.pages import PagePool
from tandem_worker.engine.request import Shortage
from tandem_worker.transfer.backends import NAMES, make_backend
from tandem_worker.transfer.base import Meter
from tandem_worker.transfer.frames import Frames
from tandem_worker.transfer.handshake import Identity, new_incarnation
from tandem_worker.transfer.link import Terms
from tandem_worker.transfer.peers import Listening, Peers
from tandem_worker.transfer.wire import Chunk, Commit, Generation, Prefill, SamplingFields

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from tandem_worker.transfer.base import Channel
    from tandem_worker.transfer.wire import AnyMessage

KEY: Final = bytes(32)
SIZES: Final = "64KiB,1MiB,16MiB,64MiB,256MiB,1GiB"
UNITS: Final = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
PAGE_TOKENS, LAYERS, KV_HEADS, HEAD_DIM = 16, 30, 3, 64  # SmolLM2-135M: pages of 368,640 B in bf16
SEGMENT: Final = 1 << 20
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
        pages = max(1, most // self.frames.page_bytes)
        shape = (pages, LAYERS, 2, PAGE_TOKENS, KV_HEADS, HEAD_DIM)
        self.store = torch.ones(shape, dtype=torch.bfloat16)
        self.raw: memoryview = self.store.view(-1).view(torch.uint8).numpy().data
        made = make_backend(backend, DIRECTORY, self.frames.frame_bytes, "127.0.0.1")
        made.open(self.raw)
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
            self.frames.push(channel, generation, 0, self.store[:pages])
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


def cpu_s() -> float:
    """CPU seconds of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


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


def plain_sockets(size: int, repeats: int) -> float:
    """GB/s of two connections that only copy: a process that sends, this one that receives, two threads each."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=send_plain, args=(there, size))
    process.start()
    address = ("127.0.0.1", here.recv())
    seconds = []
    store = memoryview(bytearray(size))
    try:
        with socket.create_connection(address) as one, socket.create_connection(address) as other:
            for _ in range(repeats + 1):
                begun = time.perf_counter()
                run_both(receive_plain, ((one, store[: size // 2]), (other, store[size // 2 :])))
                seconds.append(time.perf_counter() - begun)
    finally:
        process.kill()
        process.join()
    return size / statistics.median(seconds[1:]) / 1e9


def run_both(work: Any, arguments: Any) -> None:
    """Two threads."""
    threads = [threading.Thread(target=work, args=facts) for facts in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def receive_plain(connection: socket.socket, part: memoryview) -> None:
    """One byte asks, then the bytes come."""
    connection.sendall(b"?")
    at = 0
    while at < len(part):
        at += connection.recv_into(part[at : at + SEGMENT])


def send_plain(pipe: Connection, size: int) -> None:
    """The other process."""
    store = memoryview(bytearray(os.urandom(1)) * size)
    with socket.create_server(("127.0.0.1", 0)) as server:
        pipe.send(server.getsockname()[1])
        ends = [server.accept()[0] for _ in range(2)]
        run_both(
            answer_plain, [(end, store[: size // 2] if n == 0 else store[size // 2 :]) for n, end in enumerate(ends)]
        )


def answer_plain(connection: socket.socket, part: memoryview) -> None:
    """Until the other end hangs up."""
    while connection.recv(1):
        for at in range(0, len(part), SEGMENT):
            connection.sendall(part[at : at + SEGMENT])


def one_memcpy(size: int, repeats: int) -> float:
    """GB/s of copying one tensor into another, one thread, memory touched before."""
    source, target = torch.ones(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)
    seconds = []
    for _ in range(repeats + 1):
        begun = time.perf_counter()
        target.copy_(source)
        seconds.append(time.perf_counter() - begun)
    return size / statistics.median(seconds[1:]) / 1e9


def saved_share(trace: Path, workers: int, most: int, *, by_overlap: bool) -> tuple[float, float]:
    """Shares of KV bytes that need not travel: by the page pool's own prefix cache, and by a plain count of blocks.

    Requests go to the decode workers in turn, or to the one that knows most of their first blocks (the least loaded
    among equals); a block of the trace (512 tokens) is one page, and no cache is ever full.
    """
    requests = [json.loads(line)["hash_ids"] for line in trace.read_text().splitlines()[:most]]
    pages = sum(map(len, requests))
    pools = [PagePool(pages, 1) for _ in range(workers)]
    known: list[set[int]] = [set() for _ in range(workers)]
    saved = counted = 0
    for number, blocks in enumerate(requests):
        which = best_of(blocks, known) if by_overlap else number % workers
        saved += take_in(pools[which], blocks)
        counted += leading(blocks[:-1], known[which])
        known[which].update(blocks)
    return saved / pages, counted / pages


def take_in(pool: PagePool, blocks: list[int]) -> int:
    """Reserve, fill and give back a prompt's pages; those that were there already. The last page always travels."""
    chain = [block.to_bytes(16, "big") for block in blocks]
    claim = pool.reserve(len(chain), chain[:-1])
    if isinstance(claim, Shortage):
        raise TypeError("the pool was meant to hold the whole trace")
    pool.remember(chain, claim.pages)
    pool.release(claim.pages)
    return claim.shared


def best_of(blocks: list[int], known: list[set[int]]) -> int:
    """The worker that knows most of the first blocks; block 0, which all requests share, does not count."""
    overlaps = [max(leading(blocks[:-1], one) - 1, 0) for one in known]
    return min(range(len(known)), key=lambda which: (-overlaps[which], len(known[which])))


def leading(blocks: list[int], known: set[int]) -> int:
    """How many blocks from the first on are known."""
    return next((n for n, block in enumerate(blocks) if block not in known), len(blocks))


def main() -> None:
    """Print the table and write build/bench/transfer.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--requests", type=int, default=10**9, help="of the trace")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sizes = parse_sizes(options.sizes)
    largest = min(max(sizes.values()), 64 * 2**20)
    bases = {"tcp": plain_sockets(largest, options.repeats), "shm": one_memcpy(largest, options.repeats)}
    rows = [Row("plain copy over two sockets", bases["tcp"], "GB/s"), Row("one memcpy", bases["shm"], "GB/s")]
    for backend in NAMES:
        for row in uvloop.run(measure(backend, sizes, options.repeats)):
            value = row.value or 0.0
            rows.append(against(row.metric, value, row.unit, bases[backend], row.n) if row.unit == "GB/s" else row)
    trace = options.data / "mooncake_conversation_trace.jsonl"
    if trace.is_file():
        for workers, by_overlap in product((4, 8, 16), (False, True)):
            share, counted = saved_share(trace, workers, options.requests, by_overlap=by_overlap)
            placed = "by overlap" if by_overlap else "in turn"
            rows.append(against(f"bytes saved, {workers} decode workers, placed {placed}", share, "share", counted))
    write("transfer", rows)


if __name__ == "__main__":
    main()
