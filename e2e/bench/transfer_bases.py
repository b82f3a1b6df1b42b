"""What `make bench-transfer` holds the transfer against: the same bytes moved by the bare means, in the same run."""

from __future__ import annotations

import multiprocessing
import os
import resource
import socket
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tandem_worker.transfer.mooncake import make_engine
from tandem_worker.transfer.nixl import load_library, make_agent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

SEGMENT: Final = 1 << 20
DESCRIPTORS: Final = (256 * 2**10, 2**20, 4 * 2**20, 16 * 2**20, 64 * 2**20)  # of which the best one counts
HOST: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Base:
    """GB/s (the median), and CPU seconds of both processes for each GiB."""

    speed: float
    cpu: float


def cpu_s() -> float:
    """CPU seconds of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@contextmanager
def far(work: Callable[[Connection, int], None], size: int) -> Iterator[Connection]:
    """Another process that does `work`, which answers anything that is sent with its CPU seconds."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=work, args=(there, size))
    process.start()
    try:
        yield here
    finally:
        process.kill()
        process.join()


def answer(pipe: Connection) -> None:
    """CPU seconds whenever they are asked for; until this process is ended."""
    while True:
        pipe.recv()
        pipe.send(cpu_s())


def timed(size: int, repeats: int, move: Callable[[], None], pipe: Connection | None = None) -> Base:
    """`move` as often, after once to warm up."""

    def cpu() -> float:
        if pipe is None:
            return cpu_s()
        pipe.send(True)
        return float(pipe.recv()) + cpu_s()

    move()
    before = cpu()
    seconds = []
    for _ in range(repeats):
        begun = time.perf_counter()
        move()
        seconds.append(time.perf_counter() - begun)
    return Base(size / statistics.median(seconds) / 1e9, (cpu() - before) / (repeats * size / 2**30))


def one_memcpy(size: int, repeats: int) -> Base:
    """One array into another, one thread, memory touched before."""
    source, target = np.ones(size, np.uint8), np.zeros(size, np.uint8)
    return timed(size, repeats, lambda: np.copyto(target, source))


def plain_sockets(size: int, repeats: int) -> Base:
    """Two connections that only copy: two threads on each side."""
    store = memoryview(bytearray(size))
    with far(send_plain, size) as pipe:
        address = (HOST, pipe.recv())
        with socket.create_connection(address) as one, socket.create_connection(address) as other:
            halves = ((one, store[: size // 2]), (other, store[size // 2 :]))
            return timed(size, repeats, lambda: run_both(receive_plain, halves), pipe)


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
    with socket.create_server((HOST, 0)) as server:
        pipe.send(server.getsockname()[1])
        ends = [server.accept()[0] for _ in range(2)]
        for end, half in zip(ends, (store[: size // 2], store[size // 2 :]), strict=True):
            threading.Thread(target=answer_plain, args=(end, half), daemon=True).start()
        answer(pipe)


def answer_plain(connection: socket.socket, part: memoryview) -> None:
    """Until the other end hangs up."""
    while connection.recv(1):
        for at in range(0, len(part), SEGMENT):
            connection.sendall(part[at : at + SEGMENT])


def raw_nixl(size: int, repeats: int) -> Base:
    """The library alone, by the best of READ and WRITE and of the sizes of a descriptor."""
    store = np.zeros(size, np.uint8)
    with far(hold_nixl, size) as pipe:
        key, there = pipe.recv()
        agent = make_agent(load_library(), "near")
        agent.register_memory([(store.ctypes.data, size, 0, "")], "DRAM")
        peer = agent.add_remote_agent(key)

        def mover(way: str, step: int) -> Callable[[], None]:
            near, far_ones = (
                agent.get_xfer_descs([(start + at, min(step, size - at), 0) for at in range(0, size, step)], "DRAM")
                for start in (store.ctypes.data, there)
            )

            def move() -> None:
                handle = agent.initialize_xfer(way, near, far_ones, peer)
                state = agent.transfer(handle)
                while state == "PROC":
                    time.sleep(0.0002)
                    state = agent.check_xfer_state(handle)
                agent.release_xfer_handle(handle)

            return move

        found = [
            timed(size, repeats, mover(way, step), pipe)
            for way in ("READ", "WRITE")
            for step in DESCRIPTORS
            if step <= size
        ]
    return max(found, key=lambda base: base.speed)


def hold_nixl(pipe: Connection, size: int) -> None:
    """The other process."""
    store = np.ones(size, np.uint8)
    agent = make_agent(load_library(), "far")
    agent.register_memory([(store.ctypes.data, size, 0, "")], "DRAM")
    pipe.send((agent.get_agent_metadata(), store.ctypes.data))
    while True:
        agent.get_new_notifs()  # what UCX must do for the reader
        if pipe.poll(0.001):
            pipe.recv()
            pipe.send(cpu_s())


def raw_mooncake(size: int, repeats: int) -> Base:
    """The library alone, by the best of reads and writes and of the sizes of a piece."""
    store = np.zeros(size, np.uint8)
    with far(hold_mooncake, size) as pipe:
        peer, there = pipe.recv()
        engine = make_engine(HOST)
        engine.register_memory(store.ctypes.data, size)
        found = []
        for move in (engine.batch_transfer_sync_read, engine.batch_transfer_sync_write):
            for step in (one for one in DESCRIPTORS if one <= size):
                near, far_ones = ([start + at for at in range(0, size, step)] for start in (store.ctypes.data, there))
                sizes = [min(step, size - at) for at in range(0, size, step)]
                found.append(timed(size, repeats, partial(move, peer, near, far_ones, sizes), pipe))
    return max(found, key=lambda base: base.speed)


def hold_mooncake(pipe: Connection, size: int) -> None:
    """The other process."""
    store = np.ones(size, np.uint8)
    engine = make_engine(HOST)
    engine.register_memory(store.ctypes.data, size)
    pipe.send((f"{HOST}:{engine.get_rpc_port()}", store.ctypes.data))
    answer(pipe)


BASES: Final[dict[str, tuple[str, Callable[[int, int], Base]]]] = {
    "tcp": ("plain copy over two sockets", plain_sockets),
    "shm": ("one memcpy", one_memcpy),
    "nixl": ("NIXL alone", raw_nixl),
    "mooncake": ("Mooncake alone", raw_mooncake),
}
