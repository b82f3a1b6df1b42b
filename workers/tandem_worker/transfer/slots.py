"""Places of one frame each in memory that a reader can get at, and the two ends' refusals of what is not theirs."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from tandem_worker.transfer.base import LaneError
from tandem_worker.transfer.wire import WireError

SLOTS_BYTES: Final = 32 * 1024 * 1024  # a connection's window (outbox.py)


class WriterEnd:
    """The writer's end of a lane: frames are put into slots, lowest first, so that a quiet connection touches few."""

    def __init__(self, memory: memoryview, slot_bytes: int) -> None:
        self.flying = Flying()  # for ever empty: the writer fetches nothing
        self._memory = memory
        self._free = list(range(0, len(memory) - slot_bytes + 1, slot_bytes))
        self._used: dict[int, int] = {}

    def room(self) -> bool:
        """Is a slot free?"""
        return bool(self._free)

    def put(self, body: memoryview) -> int:
        """The one copy on this side."""
        at = heapq.heappop(self._free)
        copy(body, self._memory[at : at + len(body)])
        self._used[at] = len(body)
        return at

    def free(self, at: int, size: int) -> None:
        """Raises WireError where no such frame lies."""
        if self._used.get(at) != size:
            raise WireError(f"{size} B at {at} were not in use")
        del self._used[at]
        heapq.heappush(self._free, at)

    def fetch(self, at: int, pieces: Sequence[memoryview]) -> None:
        """The writer reads nothing."""
        raise WireError(f"a decode worker must not send pages ({size_of(pieces)} B at {at})")

    def revoke(self) -> bool:
        """Nobody writes to the writer."""
        return False


class ReaderEnd:
    """The reader's end: what it has fetched it says by `taken`; it puts and frees nothing."""

    def __init__(self, size: int) -> None:
        self.flying = Flying()
        self._size = size

    def room(self) -> bool:
        """The reader writes nothing."""
        return False

    def put(self, body: memoryview) -> int:
        """The reader writes nothing."""
        raise WireError(f"{len(body)} B of pages on the reader's side")

    def free(self, at: int, size: int) -> None:
        """The reader frees by `taken`."""
        raise WireError(f"a prefill worker took {size} B at {at}, but none were sent")

    def check(self, at: int, pieces: Sequence[memoryview]) -> None:
        """Raises WireError for a place outside of what was lent."""
        if not 0 <= at <= self._size - size_of(pieces):
            raise WireError(f"pages at {at} lie outside of {self._size} B of lent memory")


class Flying:
    """Fetches that the library carries out meanwhile, and the end of them all."""

    def __init__(self) -> None:
        self._fetches: set[asyncio.Future[None]] = set()
        self._at_end: Callable[[], None] | None = None

    def add(self, fetch: asyncio.Future[None]) -> asyncio.Future[None]:
        """One more; it is forgotten once it is over."""
        self._fetches.add(fetch)
        fetch.add_done_callback(self._over)
        return fetch

    def at_end(self, call: Callable[[], None]) -> None:
        """Call it once, when the last of those under way is over; not at all where none is."""
        if self._fetches:
            self._at_end = call

    def _over(self, fetch: asyncio.Future[None]) -> None:
        self._fetches.discard(fetch)
        if not self._fetches and self._at_end is not None:
            call, self._at_end = self._at_end, None
            call()

    def __bool__(self) -> bool:
        return bool(self._fetches)


Job = tuple[Callable[[], str], "asyncio.AbstractEventLoop", "asyncio.Future[None]"]


class Fetchers:
    """Threads of one connection that carry out fetches which block, in their order. A fetch returns what went wrong."""

    def __init__(self, name: str, threads: int, flying: Flying) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads = threads
        self._flying = flying
        for _ in range(threads):  # daemons: one that hangs must not hold up the worker's exit
            threading.Thread(target=work, args=(self._jobs,), name=name, daemon=True).start()

    def add(self, fetch: Callable[[], str]) -> asyncio.Future[None]:
        """One more; the future is done on the event loop, and fails with LaneError."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._jobs.put((fetch, loop, done))
        return self._flying.add(done)

    def close(self) -> None:
        """What has not begun never does; the threads end after what has."""
        with contextlib.suppress(queue.Empty):
            while (job := self._jobs.get_nowait()) is not None:
                job[2].cancel()
        for _ in range(self._threads):
            self._jobs.put(None)


def work(jobs: queue.SimpleQueue[Job | None]) -> None:
    """One thread: a fetch at a time until the connection is over."""
    while (job := jobs.get()) is not None:
        fetch, loop, done = job
        wrong = fetch()
        with contextlib.suppress(RuntimeError):  # the worker has stopped meanwhile: nobody waits
            loop.call_soon_threadsafe(settle, done, wrong)


def settle(done: asyncio.Future[None], wrong: str) -> None:
    """On the event loop: a fetch is over."""
    if done.done():
        return
    if wrong:
        done.set_exception(LaneError(wrong))
    else:
        done.set_result(None)


def size_of(pieces: Sequence[memoryview]) -> int:
    """Bytes of all of them."""
    return sum(map(len, pieces))


def copy(source: memoryview, target: memoryview) -> None:
    """One memcpy; the interpreter is free meanwhile."""
    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))


def address_of(memory: memoryview) -> int:
    """Where it lies."""
    return int(np.frombuffer(memory, np.uint8).ctypes.data)
