"""The two ends of a lane: the writer says where in its lent pages a frame lies, the reader brings it into its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Final

import numpy as np

from tandem_worker.transfer.base import LaneError
from tandem_worker.transfer.wire import Span, WireError

LOG = logging.getLogger(__name__)
NO_MEMORY: Final = "there is no memory to read pages with"
ADDRESSES: Final = 2**63  # more than any machine has; a library's own sums do not overflow below it
BATCH_BYTES: Final = 8 * 2**20  # fetched together, then no more: a long frame goes alone, the next to another thread
Move = tuple[int, int, int]  # from where in the peer's lent memory, to which address here, how many bytes


class WriterEnd:
    """The writer's end: frames stay where they are; what the reader needs is told by the connection."""

    def __init__(self, memory: memoryview) -> None:
        """`memory`: what was lent."""
        self.flying = Flying()  # for ever empty: the writer fetches nothing
        self.scratch = memoryview(b"")
        self._start = address_of(memory)
        self._size = len(memory)

    def spans(self, pieces: Sequence[memoryview]) -> tuple[Span, ...]:
        """Where they lie; none for pieces that are not in the lent memory: their bytes go over the connection."""
        places = [(address_of(piece) - self._start, len(piece)) for piece in pieces]
        if not all(0 <= at <= self._size - size for at, size in places):
            return ()
        return tuple(Span(at, size) for at, size in places)

    def sample(self, most: int) -> tuple[Span, ...]:
        """The beginning."""
        return (Span(0, min(most, self._size)),) if self._size else ()

    def under_way(self, frames: bool) -> None:
        """The reader needs no help."""

    def fetch(self, spans: Sequence[Span], pieces: Sequence[memoryview]) -> None:
        """The writer reads nothing."""
        raise WireError(f"a decode worker must not send pages ({size_of(pieces)} B at {spans[0].at})")

    def revoke(self) -> bool:
        """Nobody writes to the writer."""
        return False

    def close(self) -> None:
        """What is lent is the worker's, not the connection's."""


class ReaderEnd:
    """The reader's end: what it has fetched it says by `taken`; it sends nothing."""

    def __init__(
        self, name: str, size: int, scratch: memoryview, threads: int, read: Callable[[list[Move]], str]
    ) -> None:
        """`size`: of what was lent; `scratch`: memory that reads may go into, and that is nobody's page.

        Raises LaneError where the machine has no threads left.
        """
        self.flying = Flying()
        self.scratch = scratch
        self._size = size
        # A thread holds what `read` belongs to, and so a mapping of it, until its last read is over.
        self._fetchers = Fetchers(name, threads, self.flying, read)

    def sample(self, most: int) -> tuple[Span, ...]:  # noqa: ARG002
        """The reader lends nothing."""
        return ()

    def spans(self, pieces: Sequence[memoryview]) -> tuple[Span, ...]:
        """The reader sends no pages."""
        raise WireError(f"{size_of(pieces)} B of pages on the reader's side")

    def under_way(self, frames: bool) -> None:
        """The reader sends no frames."""

    def fetch(self, spans: Sequence[Span], pieces: Sequence[memoryview]) -> asyncio.Future[None] | None:
        """By a thread. Raises WireError outside of what was lent, LaneError once the connection is over."""
        return self._fetchers.add(self.moves(spans, pieces))

    def revoke(self) -> bool:
        """A read that has begun is never given up: its bytes may come whatever a library says. True: none has."""
        self.close()
        return not self.flying

    def close(self) -> None:
        """The connection is gone: no read begins any more. Twice is harmless."""
        self._fetchers.close()

    def moves(self, spans: Sequence[Span], pieces: Sequence[memoryview]) -> list[Move]:
        """One for each run that has no gap on either side. Raises WireError for a place outside of what was lent."""
        if any(not 0 <= span.at <= self._size - span.size for span in spans):
            raise WireError(f"pages at {spans[0].at} and on lie outside of {self._size} B of lent memory")
        if sum(span.size for span in spans) != size_of(pieces):
            raise WireError(f"{sum(span.size for span in spans)} B for a place of {size_of(pieces)} B")
        return list(pair_up(spans, [(address_of(piece), len(piece)) for piece in pieces]))


def pair_up(spans: Sequence[Span], places: Sequence[tuple[int, int]]) -> Iterator[Move]:
    """Cut two lists of (where, bytes) of the same sum at the ends of both."""
    ends = sorted({*accumulate(span.size for span in spans), *accumulate(size for _, size in places)})
    source, target, done = Walk(spans), Walk(places), 0
    for end in ends:
        yield source.step(end - done), target.step(end - done), end - done
        done = end


class Walk:
    """Through runs of memory, by steps that never cross the end of one."""

    def __init__(self, places: Sequence[tuple[int, int]]) -> None:
        self._places = iter(places)
        self._at = self._left = 0

    def step(self, size: int) -> int:
        """Where the next `size` bytes are."""
        if not self._left:
            self._at, self._left = next(self._places)
        at = self._at
        self._at += size
        self._left -= size
        return at


class Flying:
    """Fetches that are carried out meanwhile, and the end of them all."""

    def __init__(self) -> None:
        self._fetches: set[asyncio.Future[None]] = set()
        self._at_end: list[Callable[[], None]] = []

    def add(self, fetch: asyncio.Future[None]) -> asyncio.Future[None]:
        """One more; it is forgotten once it is over."""
        self._fetches.add(fetch)
        fetch.add_done_callback(self._over)
        return fetch

    def at_end(self, call: Callable[[], None]) -> None:
        """Call it once, when the last of those under way is over; not at all where none is."""
        if self._fetches:
            self._at_end.append(call)

    def _over(self, fetch: asyncio.Future[None]) -> None:
        self._fetches.discard(fetch)
        while not self._fetches and self._at_end:
            self._at_end.pop(0)()

    def __bool__(self) -> bool:
        return bool(self._fetches)


Job = tuple[list[Move], "asyncio.AbstractEventLoop", "asyncio.Future[None]"]


class Fetchers:
    """Threads of one connection that carry out fetches. `read` brings moves about, blocks, and says what went wrong.

    What it says is over, whatever went wrong; where it raises, bytes may still come in.
    What waits is carried out together: a library's read costs as much for one frame as for several.
    """

    def __init__(self, name: str, threads: int, flying: Flying, read: Callable[[list[Move]], str]) -> None:
        """Raises LaneError where the machine has no threads left."""
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads = threads
        self._flying = flying
        try:
            for _ in range(threads):  # daemons: one that hangs must not hold up the worker's exit
                threading.Thread(target=work, args=(self._jobs, read), name=name, daemon=True).start()
        except RuntimeError as error:
            self.close()
            raise LaneError(f"there is no thread to read with: {error}") from error

    def add(self, moves: list[Move]) -> asyncio.Future[None]:
        """One more; the future is done on the event loop, and fails with LaneError. Raises it where it is closed."""
        if not self._threads:
            raise LaneError("the peer's memory is not read any more")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._jobs.put((moves, loop, done))
        return self._flying.add(done)

    def close(self) -> None:
        """What has not begun never does; the threads end after what has. Twice is harmless."""
        with contextlib.suppress(queue.Empty):
            while (job := self._jobs.get_nowait()) is not None:
                job[2].cancel()
        for _ in range(self._threads):
            self._jobs.put(None)
        self._threads = 0


def work(jobs: queue.SimpleQueue[Job | None], read: Callable[[list[Move]], str]) -> None:
    """One thread: what waits, again and again, until the connection is over."""
    while batch := next_batch(jobs):
        wrong = carried_out(batch, read)
        if wrong is not None:
            with contextlib.suppress(RuntimeError):  # the worker has stopped meanwhile: nobody waits
                batch[0][1].call_soon_threadsafe(settle, [done for _, _, done in batch], wrong)


def carried_out(batch: Sequence[Job], read: Callable[[list[Move]], str]) -> str | None:
    """What went wrong, "": nothing. None: nobody knows, so these are never over, and their pages are nobody's."""
    try:
        moves = joined([move for moves, _, _ in batch for move in moves])
    except MemoryError:
        return NO_MEMORY
    try:
        return read(moves)
    except Exception:
        LOG.exception("%d reads of pages whose end is not known: their pages are nobody's from now on", len(batch))
        return None


def next_batch(jobs: queue.SimpleQueue[Job | None]) -> list[Job]:
    """Waits for a job, and takes those behind it along, up to BATCH_BYTES; none: the connection is over."""
    batch: list[Job] = []
    job, size = jobs.get(), 0
    while job is not None:
        batch.append(job)
        size += sum(moved for _, _, moved in job[0])
        if size >= BATCH_BYTES:
            return batch
        try:
            job = jobs.get_nowait()
        except queue.Empty:
            return batch
    if batch:
        jobs.put(None)  # the next call's
    return batch


def joined(moves: Sequence[Move]) -> list[Move]:
    """Neighbours on both sides as one."""
    found: list[Move] = []
    for at, target, size in moves:
        if found and found[-1][0] + found[-1][2] == at and found[-1][1] + found[-1][2] == target:
            found[-1] = (*found[-1][:2], found[-1][2] + size)
        else:
            found.append((at, target, size))
    return found


def cut(moves: Sequence[Move], most: int) -> Iterator[Move]:
    """The same in pieces of at most so many bytes."""
    for at, target, size in moves:
        for done in range(0, size, most):
            yield at + done, target + done, min(most, size - done)


def settle(fetches: Sequence[asyncio.Future[None]], wrong: str) -> None:
    """On the event loop: fetches are over."""
    for done in fetches:
        if done.done():
            continue
        if wrong:
            done.set_exception(LaneError(wrong))
        else:
            done.set_result(None)


def start_of(text: str, size: int) -> int:
    """Where lent memory begins at the peer, from hexadecimal. Raises LaneError for what no library should see."""
    try:
        start = int(text, 16)
    except ValueError as error:
        raise LaneError(f"the peer's memory is nowhere: {error}") from error
    if not 0 < start <= ADDRESSES - size:
        raise LaneError(f"the peer's memory would lie at {start:#x}")
    return start


def size_of(pieces: Sequence[memoryview]) -> int:
    """Bytes of all of them."""
    return sum(map(len, pieces))


def address_of(memory: memoryview) -> int:
    """Where it lies."""
    return int(np.frombuffer(memory, np.uint8).ctypes.data)
