"""Pages by Mooncake's transfer engine: the decode worker reads, as with nixl.

What differs: the library's reads block until they are over.
"""

from __future__ import annotations

import importlib
import logging
import mmap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from tandem_worker.transfer.base import BackendError, Fence, LaneError
from tandem_worker.transfer.ends import NO_MEMORY, Move, ReaderEnd, WriterEnd, address_of, cut, start_of
from tandem_worker.transfer.listeners import keep_to, sockets
from tandem_worker.transfer.peers import parse_address
from tandem_worker.transfer.probe import PROBE_BYTES
from tandem_worker.transfer.wire import Lend

if TYPE_CHECKING:
    from tandem_worker.engine.memory import MemoryFile
    from tandem_worker.transfer.base import Lane

LOG = logging.getLogger(__name__)
READS_AT_ONCE: Final = 2  # of one connection: one is on its way while the next is set up
# The library moves the pieces of a read beside one another, and one piece slowly; its queue refuses a few thousand.
PIECE_BYTES: Final = 2**20
PIECES_AT_ONCE: Final = 512


def make_engine(host: str) -> Any:
    """A transfer engine that peers find at this address. Raises BackendError, with what to install.

    It listens at all of the machine's addresses and cannot be told otherwise: what comes to another one is dropped.
    """
    before = sockets()
    try:
        engine = importlib.import_module("mooncake.engine").TransferEngine()
    except ImportError as error:
        raise BackendError(f"--transfer-backend mooncake needs the extra `mooncake`: {error}") from error
    if engine.initialize(host, "P2PHANDSHAKE", "tcp", ""):
        raise BackendError(f"--transfer-backend mooncake: the transfer engine cannot be started at {host}")
    try:
        keep_to(host, before)
    except (OSError, ValueError) as error:
        LOG.warning("Mooncake's transfer engine listens at every address of this machine: %s", error)
    return engine


class Lent(WriterEnd):
    """The writer's end: the worker's pages, which any transfer engine may read that knows where they lie."""

    name = "mooncake"
    fence = Fence.KEY


class Reader(ReaderEnd):
    """The reader's end."""

    name = "mooncake"
    fence = Fence.KEY
    ordered = False

    def __init__(self, engine: Any, peer: str, start: int, size: int, scratch: memoryview) -> None:
        super().__init__(self.name, size, scratch, READS_AT_ONCE, self._read)
        self._engine = engine
        self._peer = peer
        self._start = start

    def _read(self, moves: list[Move]) -> str:
        try:
            calls = list(self._calls(moves))  # before the first read, so that none has begun where memory is short
        except MemoryError:
            return NO_MEMORY
        for here, there, sizes in calls:
            if failed := self._engine.batch_transfer_sync_read(self._peer, here, there, sizes):
                return f"a read of pages failed: the transfer engine says {failed}"
        return ""

    def _calls(self, moves: list[Move]) -> Iterator[tuple[list[int], list[int], list[int]]]:
        pieces = list(cut(moves, PIECE_BYTES))
        for first in range(0, len(pieces), PIECES_AT_ONCE):
            there, here, sizes = zip(*pieces[first : first + PIECES_AT_ONCE], strict=True)
            yield list(here), [self._start + at for at in there], list(sizes)


class Mooncake:
    """Workers with Mooncake's package, over its TCP transport."""

    name = "mooncake"
    fence = Fence.KEY

    def __init__(self, host: str) -> None:
        """Raises BackendError."""
        self._engine = make_engine(host)
        self._address = f"{host}:{self._engine.get_rpc_port()}"
        self._memory = memoryview(b"")
        self._scratch = memoryview(mmap.mmap(-1, PROBE_BYTES))  # shared by all readers: nobody looks at it

    def open(self, memory: memoryview, file: MemoryFile | None) -> None:  # noqa: ARG002 (any memory can be registered)
        """The worker's pages, which reads go into and come from. Raises BackendError."""
        for part in (memory, self._scratch):
            if self._engine.register_memory(address_of(part), len(part)):
                raise BackendError("--transfer-backend mooncake: the KV pages cannot be registered")
        self._memory = memory

    def lend(self) -> tuple[Lane, Lend] | None:
        """The worker's pages."""
        where = f"{self._address} {address_of(self._memory):x}"
        return Lent(self._memory), Lend(backend=self.name, where=where, token=b"", size=len(self._memory))

    async def borrow(self, lend: Lend) -> Lane:
        """Raises LaneError."""
        if lend.backend != self.name:
            raise LaneError(f"this worker's backend is {self.name}, the peer lends {lend.backend}")
        peer, _, start = lend.where.partition(" ")
        try:
            parse_address(peer)  # the library would look names up
        except ValueError as error:
            raise LaneError(f"the peer's memory is nowhere: {error}") from error
        return Reader(self._engine, peer, start_of(start, lend.size), lend.size, self._scratch)

    def close(self) -> None:
        """Lanes go with their connections."""
