"""Pages by NIXL (UCX: RDMA where there is a card, shared memory or TCP where there is none): the decode worker reads.

The prefill worker registers its pages once, lends what it names on a connection until `taken`, and copies nothing; the
decode worker has its own agent read each frame straight into the reserved pages. What its agent has under way it knows.
The fence is the key: pages of a ticket that ended early are free once no read is under way. None that has begun is
given up, since the library cannot: its bytes come in after it says so (NIXL 1.5.1; tests/transfer/late_reads.py). A
peer's end ends its reads; with one that is stopped, and not gone, they stay under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import mmap
import os
import secrets
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from tandem_worker.transfer.base import BackendError, Fence, LaneError
from tandem_worker.transfer.ends import NO_MEMORY, Move, ReaderEnd, WriterEnd, address_of, start_of
from tandem_worker.transfer.interface import interface_of
from tandem_worker.transfer.probe import PROBE_BYTES
from tandem_worker.transfer.wire import Lend

if TYPE_CHECKING:
    from tandem_worker.engine.memory import MemoryFile
    from tandem_worker.transfer.base import Lane

LOG = logging.getLogger(__name__)
READS_AT_ONCE: Final = 2  # of one connection: one is on its way while the next is set up
# NIXL has nothing to wait on, and its own progress thread takes a whole core: this worker looks by itself, and only
# while something is under way.
LOOK_S: Final = 0.0002  # reader: at its reads
HELP_S: Final = 0.001  # writer: at what UCX must do for readers where no card does it
LATE_HELP_S: Final = 0.1  # the same for readers whose connection has ended, and whose reads perhaps have not
EARLIER_S: Final = 2.0
RAM: Final = "DRAM"
CARDS: Final = Path("/sys/class/infiniband")


@dataclass(frozen=True, slots=True)
class Library:
    """The optional package, once it is imported."""

    agent: Any
    config: Any
    strict: Any  # the library's own lock, since threads read
    errors: tuple[type[Exception], ...]


def load_library() -> Library:
    """Raises BackendError where the package is not installed, with what to install."""
    try:
        api = importlib.import_module("nixl._api")
        bindings = importlib.import_module("nixl._bindings")
    except ImportError as error:
        raise BackendError(f"--transfer-backend nixl needs the nixl package (the extra `nixl`): {error}") from error
    errors = tuple(getattr(bindings, name) for name in dir(bindings) if name.endswith("Error"))
    return Library(api.nixl_agent, api.nixl_agent_config, api.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT, errors)


def make_agent(library: Library, name: str) -> Any:
    """Raises one of the library's errors."""
    config = library.config(enable_prog_thread=False, backends=["UCX"], sync_mode=library.strict)
    return library.agent(name, config)


def keep_to(host: str) -> None:
    """Let UCX listen at the interface of this address alone; whoever chose devices, or has an RDMA card, chooses."""
    interface = interface_of(host)
    if interface is not None and not any(CARDS.glob("*")):
        os.environ.setdefault("UCX_NET_DEVICES", interface)


def leave(code: int) -> NoReturn:
    """End the process at once: a library that comes with NIXL 1.5.1 (libnl-route) crashes when it is unloaded."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Agent:
    """The worker's NIXL agent."""

    def __init__(self, library: Library) -> None:
        """Raises BackendError."""
        self.errors = library.errors
        try:
            self.raw = make_agent(library, secrets.token_hex(16))
        except library.errors as error:
            raise BackendError(f"--transfer-backend nixl: no agent with UCX: {error}") from error
        self._helps_late = False

    def help(self) -> None:
        """Do what UCX must do for readers, once."""
        with contextlib.suppress(*self.errors):  # the reader hears of what is wrong
            self.raw.get_new_notifs()

    def help_late(self) -> None:
        """From now on and for good: a reader that has gone silent may come back whenever it likes."""
        if not self._helps_late:
            self._helps_late = True
            self._help_late()

    def _help_late(self) -> None:
        self.help()
        asyncio.get_running_loop().call_later(LATE_HELP_S, self._help_late)

    def register(self, memory: memoryview) -> Any:
        """Memory that the agent may read from or into. Raises one of the library's errors."""
        return self.raw.register_memory([(address_of(memory), len(memory), 0, "")], RAM)

    def read(self, peer: str, start: int, moves: list[Move]) -> str:
        """Bring the peer's bytes from `start` on here; blocks. Returns what went wrong.

        There is no deadline: until the library says that it is over it may still come in, and its pages are nobody's.
        """
        try:
            handle = self._set_up(peer, start, moves)
        except self.errors as error:
            return f"pages cannot be read: {error}"
        except MemoryError:  # nothing has begun
            return NO_MEMORY
        state = self._state(self.raw.transfer, handle)
        while state == "PROC" or not self._released(handle):
            time.sleep(LOOK_S)
            if state == "PROC":
                state = self._state(self.raw.check_xfer_state, handle)
        return "" if state == "DONE" else f"a read of pages failed: {state}"

    def _set_up(self, peer: str, start: int, moves: list[Move]) -> Any:
        here = [(target, size, 0) for _, target, size in moves]
        there = [(start + at, size, 0) for at, _, size in moves]
        descs = self.raw.get_xfer_descs
        return self.raw.initialize_xfer("READ", descs(here, RAM), descs(there, RAM), peer)

    def _state(self, ask: Callable[[Any], Any], handle: Any) -> str:
        try:
            return str(ask(handle))
        except self.errors as error:
            return f"ERR: {error}"

    def _released(self, handle: Any) -> bool:
        try:
            self.raw.release_xfer_handle(handle)
        except self.errors as error:
            LOG.debug("a read cannot be given up yet: %s", error)
            return False
        return True


class Lent(WriterEnd):
    """The writer's end: the worker's pages, which the peer's agent may read."""

    name = "nixl"
    fence = Fence.KEY

    def __init__(self, agent: Agent, memory: memoryview) -> None:
        super().__init__(memory)
        self._agent = agent
        self._helping: asyncio.TimerHandle | None = None
        self._helped = False

    def under_way(self, frames: bool) -> None:
        """Until all is taken: what UCX does for readers in this process, where no card does it."""
        if frames and self._helping is None:
            self._help()
        elif not frames:
            self._rest()

    def close(self) -> None:
        """The connection is gone; the peer's reads are perhaps not."""
        self._rest()
        if self._helped:  # a page, or the probe of the link
            self._agent.help_late()

    def _help(self) -> None:
        self._helped = True
        self._agent.help()
        self._helping = asyncio.get_running_loop().call_later(HELP_S, self._help)

    def _rest(self) -> None:
        if self._helping is not None:
            self._helping.cancel()
            self._helping = None


class Reader(ReaderEnd):
    """The reader's end."""

    name = "nixl"
    fence = Fence.KEY
    ordered = False

    def __init__(self, agent: Agent, peer: str, start: int, lend: Lend, scratch: memoryview) -> None:
        super().__init__(self.name, lend.size, scratch, READS_AT_ONCE, lambda moves: agent.read(peer, start, moves))
        self._agent = agent
        self._peer = peer
        self.key = lend.key
        self.over = asyncio.Event()  # nothing of it can land any more, and the peer may be met anew

    def close(self) -> None:
        """Nothing new is read, and the peer is forgotten, but not before the last read is over.

        Of a peer that it has forgotten the library says at once that every read has failed, and yet their bytes come.
        """
        super().close()
        if self.flying:
            self.flying.at_end(self._forget)
        else:
            self._forget()

    def _forget(self) -> None:
        if not self.over.is_set():
            self.over.set()
            with contextlib.suppress(*self._agent.errors):
                self._agent.raw.remove_remote_agent(self._peer)


class Nixl:
    """Workers with the nixl package, on any machines that UCX can connect."""

    name = "nixl"
    fence = Fence.KEY

    def __init__(self, host: str) -> None:
        """`host`: this worker's own address. Raises BackendError."""
        keep_to(host)
        self._agent = Agent(load_library())
        self._errors: tuple[type[Exception], ...] = (OSError, ValueError, *self._agent.errors)
        self._memory = memoryview(b"")
        self._scratch = memoryview(mmap.mmap(-1, PROBE_BYTES))  # shared by all readers: nobody looks at it
        self._key = b""
        self._readers: dict[str, Reader] = {}

    def open(self, memory: memoryview, file: MemoryFile | None) -> None:  # noqa: ARG002 (any memory can be registered)
        """The worker's pages, which reads go into and come from. Raises BackendError."""
        try:
            registered = self._agent.register(memory)
            self._agent.register(self._scratch)
            self._key = bytes(self._agent.raw.get_partial_agent_metadata(registered, inc_conn_info=True))
        except self._errors as error:
            raise BackendError(f"--transfer-backend nixl: the KV pages cannot be registered: {error}") from error
        self._memory = memory

    def lend(self) -> tuple[Lane, Lend] | None:
        """The worker's pages."""
        where, size = f"{address_of(self._memory):x}", len(self._memory)
        return Lent(self._agent, self._memory), Lend(
            backend=self.name, where=where, token=b"", size=size, key=self._key
        )

    async def borrow(self, lend: Lend) -> Lane:
        """Raises LaneError."""
        if lend.backend != self.name:
            raise LaneError(f"this worker's backend is {self.name}, the peer lends {lend.backend}")
        await self._earlier_is_over(lend.key)
        start = start_of(lend.where, lend.size)
        try:
            peer = bytes(self._agent.raw.add_remote_agent(lend.key)).decode()
        except self._errors as error:
            raise LaneError(f"the peer's agent cannot be added: {error}") from error
        if peer in self._readers:
            raise LaneError("the peer's agent is in use by an earlier connection")
        reader = self._readers[peer] = Reader(self._agent, peer, start, lend, self._scratch)
        return reader

    async def _earlier_is_over(self, key: bytes) -> None:
        """A peer that is met anew is waited for, not long: its reads of before end within a look."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EARLIER_S):
                for reader in [one for one in self._readers.values() if one.key == key]:
                    await reader.over.wait()
        self._readers = {peer: reader for peer, reader in self._readers.items() if not reader.over.is_set()}

    def close(self) -> None:
        """Lanes go with their connections."""
