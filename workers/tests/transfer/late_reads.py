"""`python -m workers.tests.transfer.late_reads BACKEND`: a long read is given up while its lender is stopped.

Prints JSON: whether the reader then said that nothing comes in any more, and in how much of its memory something came
in before and after it said so. All in processes of their own: one is stopped, and the libraries are native.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import multiprocessing
import os
import signal
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from tandem_worker.transfer.backends import make_backend
from tandem_worker.transfer.base import Backend, Lane
from tandem_worker.transfer.wire import Lend, Span
from workers.tests.transfer.kit import eventually

SIZE = 64 << 20  # far more than the kernel holds of a peer that is stopped
STEP = 4096
LOOK_S = 1.0  # what a reader that is wrong needs to say so, or to let something in; a right one could wait for ever
WITHIN_S = 60.0
FORKS = multiprocessing.get_context("fork")


@dataclass
class Lender:
    """A process that lends pages."""

    process: multiprocessing.process.BaseProcess
    lent: Lend


def lender(name: str) -> Lender:
    here, there = FORKS.Pipe()
    process = FORKS.Process(target=lambda: asyncio.run(lend(name, there)), daemon=True)
    process.start()
    assert here.poll(WITHIN_S), "the lender has not begun"
    return Lender(process, here.recv())


async def lend(name: str, pipe: Connection) -> None:
    pages = memoryview(mmap.mmap(-1, SIZE))
    pages[:] = b"\x07" * SIZE
    backend = make_backend(name, Path(), "127.0.0.1")
    backend.open(pages, None)
    lane, lent = backend.lend()
    lane.under_way(True)  # what UCX does for readers
    pipe.send(lent)
    await asyncio.Event().wait()


def arrived(pages: memoryview) -> int:
    return sum(map(bool, pages[::STEP]))


async def over_within(lane: Lane, seconds: float) -> bool:
    """Does nothing come in any more?"""
    over = asyncio.Event()
    lane.flying.at_end(over.set)
    try:
        await asyncio.wait_for(over.wait(), seconds if lane.flying else 0)
    except TimeoutError:
        return not lane.flying
    return True


async def give_up(lane: Lane, pages: memoryview, lender: Lender) -> bool:
    """The lender is stopped in the middle of a read, which is given up. Is that said to be over?"""
    lane.fetch([Span(0, SIZE)], [pages]).add_done_callback(lambda done: done.cancelled() or done.exception())
    await eventually(lambda: pages[0], "the read has begun", WITHIN_S)
    os.kill(lender.process.pid, signal.SIGSTOP)
    return lane.revoke() or await over_within(lane, LOOK_S)


async def progress(backend: Backend, lend: Lend, pages: memoryview) -> None:
    """Of another lender so much is read that the library has every occasion to let something else in."""
    lane = await backend.borrow(lend)
    end = asyncio.get_running_loop().time() + LOOK_S
    while asyncio.get_running_loop().time() < end:
        await lane.fetch([Span(0, STEP)], [pages[:STEP]])
    lane.close()


async def main(name: str, stopped: Lender, other: Lender) -> dict:
    pages = memoryview(mmap.mmap(-1, SIZE))
    reader = make_backend(name, Path(), "127.0.0.1")
    reader.open(pages, None)
    lane = await reader.borrow(stopped.lent)
    early = await give_up(lane, pages, stopped)
    pages[:] = bytes(SIZE)
    os.kill(stopped.process.pid, signal.SIGCONT)
    assert await over_within(lane, WITHIN_S)
    before = arrived(pages)
    pages[:] = bytes(SIZE)  # whoever has them now
    await progress(reader, other.lent, pages)
    return {"over_while_stopped": early, "before": before, "after": arrived(pages[STEP:])}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1], lender(sys.argv[1]), lender(sys.argv[1])))), flush=True)
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(0)
