"""Pages by Mooncake's transfer engine: the decode worker reads, as with nixl.

What differs: the library's reads block, so each connection has threads of its own for them; and none can be given up.
Pages of a ticket that ended early are free once every read of its connection has returned, which the end of the peer's
process or of its network connection brings about; until then they are in quarantine.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import mmap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from tandem_worker.transfer.base import BackendError, Fence, LaneError
from tandem_worker.transfer.slots import SLOTS_BYTES, Fetchers, ReaderEnd, WriterEnd, address_of
from tandem_worker.transfer.wire import Lend

if TYPE_CHECKING:
    from tandem_worker.transfer.base import Lane

LOG = logging.getLogger(__name__)
LANES_AT_MOST: Final = 32  # lent at once; further connections use tcp
READS_AT_ONCE: Final = 2  # of one connection: one is on its way while the next is set up


def make_engine(host: str) -> Any:
    """A transfer engine that listens at this address. Raises BackendError, with what to install."""
    try:
        engine = importlib.import_module("mooncake.engine").TransferEngine()
    except ImportError as error:
        raise BackendError(f"--transfer-backend mooncake needs the extra `mooncake`: {error}") from error
    if engine.initialize(host, "P2PHANDSHAKE", "tcp", ""):
        raise BackendError(f"--transfer-backend mooncake: the transfer engine cannot be started at {host}")
    return engine


class Lent(WriterEnd):
    """The writer's end: registered memory that any transfer engine may read that knows where it lies."""

    name = "mooncake"
    fence = Fence.KEY
    ordered = False  # a frame is fetched after the message that names it: a last word waits until all are

    def __init__(self, engine: Any, slot_bytes: int) -> None:
        """Raises OSError."""
        self._map = mmap.mmap(-1, max(SLOTS_BYTES // slot_bytes, 1) * slot_bytes)
        memory = memoryview(self._map)
        super().__init__(memory, slot_bytes)
        self._engine = engine
        self.start = address_of(memory)
        self.size = len(memory)
        if engine.register_memory(self.start, self.size):
            raise OSError("the transfer engine cannot register memory")
        self.closed = False

    def close(self) -> None:
        """It cannot be read any more."""
        if self.closed:
            return
        self.closed = True
        self._engine.unregister_memory(self.start)
        with contextlib.suppress(BufferError):
            self._memory.release()
            self._map.close()


class Reader(ReaderEnd):
    """The reader's end."""

    name = "mooncake"
    fence = Fence.KEY
    ordered = False

    def __init__(self, engine: Any, peer: str, start: int, size: int) -> None:
        super().__init__(size)
        self._engine = engine
        self._peer = peer
        self._start = start
        self._fetchers = Fetchers(self.name, READS_AT_ONCE, self.flying)
        self._closed = False

    def fetch(self, at: int, pieces: Sequence[memoryview]) -> asyncio.Future[None]:
        """Raises WireError outside of what was lent, LaneError once the connection is over."""
        self.check(at, pieces)
        if self._closed:
            raise LaneError("the peer's memory is not read any more")
        here, there, sizes = [], [], []
        for piece in pieces:
            here.append(address_of(piece))
            there.append(self._start + at)
            sizes.append(len(piece))
            at += len(piece)
        return self._fetchers.add(lambda: self._read(here, there, sizes))

    def _read(self, here: list[int], there: list[int], sizes: list[int]) -> str:
        failed = self._engine.batch_transfer_sync_read(self._peer, here, there, sizes)
        return f"a read of pages failed: the transfer engine says {failed}" if failed else ""

    def revoke(self) -> bool:
        """No read that has begun can be given up. True: none is under way."""
        self.close()
        return not self.flying

    def close(self) -> None:
        """The connection is gone: nothing new is read, and the threads end."""
        if not self._closed:
            self._closed = True
            self._fetchers.close()


class Mooncake:
    """Workers with Mooncake's package, over its TCP transport."""

    name = "mooncake"
    fence = Fence.KEY

    def __init__(self, slot_bytes: int, host: str) -> None:
        """Raises BackendError."""
        self._slot_bytes = slot_bytes
        self._engine = make_engine(host)
        self._address = f"{host}:{self._engine.get_rpc_port()}"
        self._lent: list[Lent] = []

    def open(self, memory: memoryview) -> None:
        """The worker's pages, which reads go into. Raises BackendError."""
        if self._engine.register_memory(address_of(memory), len(memory)):
            raise BackendError("--transfer-backend mooncake: the KV pages cannot be registered")

    def lend(self) -> tuple[Lane, Lend] | None:
        """New registered memory, unless there is too much or the library has none."""
        self._lent = [lent for lent in self._lent if not lent.closed]
        if len(self._lent) >= LANES_AT_MOST:
            return None
        try:
            lent = Lent(self._engine, self._slot_bytes)
        except OSError as error:
            LOG.warning("no registered memory: %s", error)
            return None
        self._lent.append(lent)
        where = f"{self._address} {lent.start:x}"
        return lent, Lend(backend=self.name, where=where, token=b"", size=lent.size)

    async def borrow(self, lend: Lend) -> Lane:
        """Raises LaneError."""
        if lend.backend != self.name:
            raise LaneError(f"this worker's backend is {self.name}, the peer lends {lend.backend}")
        peer, _, start = lend.where.partition(" ")
        try:
            return Reader(self._engine, peer, int(start, 16), lend.size)
        except ValueError as error:
            raise LaneError(f"the peer's memory is nowhere: {error}") from error

    def close(self) -> None:
        """Lanes go with their connections."""
