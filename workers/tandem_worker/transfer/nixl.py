"""Pages by NIXL (UCX: RDMA where there is a card, shared memory or TCP where there is none): the decode worker reads.

The prefill worker puts frames into slots of registered memory and names them on the connection; the decode worker has
its NIXL agent read each one straight into the reserved pages. So no peer ever holds a key to anybody's KV pages: the
only writer of a decode worker's pages is its own agent, and what that has under way it knows. The fence is the key:
pages of a ticket that ended early are free once no read is under way, or the peer's agent is forgotten and the library
has given every read up; a connection's end alone proves nothing, since a read may still come in.
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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from tandem_worker.transfer.base import BackendError, Fence, LaneError
from tandem_worker.transfer.slots import SLOTS_BYTES, ReaderEnd, WriterEnd, address_of
from tandem_worker.transfer.wire import Lend

if TYPE_CHECKING:
    from tandem_worker.transfer.base import Lane

LOG = logging.getLogger(__name__)
LANES_AT_MOST: Final = 32  # lent at once; further connections use tcp
POLL_S: Final = 0.001  # NIXL has nothing to wait on: what is under way is looked at this often
RAM: Final = "DRAM"


@dataclass(frozen=True, slots=True)
class Library:
    """The optional package, once it is imported."""

    agent: Any
    config: Any
    errors: tuple[type[Exception], ...]


def load_library() -> Library:
    """Raises BackendError where the package is not installed, with what to install."""
    try:
        api = importlib.import_module("nixl._api")
        bindings = importlib.import_module("nixl._bindings")
    except ImportError as error:
        raise BackendError(f"--transfer-backend nixl needs the nixl package (the extra `nixl`): {error}") from error
    errors = tuple(getattr(bindings, name) for name in dir(bindings) if name.endswith("Error"))
    return Library(api.nixl_agent, api.nixl_agent_config, errors)


def leave(code: int) -> NoReturn:
    """End the process at once: a library that comes with NIXL 1.5.1 (libnl-route) crashes when it is unloaded."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Agent:
    """The worker's NIXL agent, and the reads that it has under way."""

    def __init__(self, library: Library) -> None:
        """Raises BackendError."""
        self.library = library
        try:
            self.raw = library.agent(secrets.token_hex(16), library.config(backends=["UCX"]))
        except library.errors as error:
            raise BackendError(f"--transfer-backend nixl: no agent with UCX: {error}") from error
        self._reads: dict[Any, asyncio.Future[None]] = {}
        self._polling: asyncio.TimerHandle | None = None

    def register(self, memory: memoryview) -> Any:
        """Memory that the agent may read from or into. Raises one of the library's errors."""
        return self.raw.register_memory([(address_of(memory), len(memory), 0, "")], RAM)

    def read(self, peer: str, start: int, pieces: Sequence[memoryview]) -> asyncio.Future[None]:
        """Bring the peer's bytes from `start` on into the pieces. Raises one of the library's errors."""
        here, there = [], []
        for piece in pieces:
            here.append((address_of(piece), len(piece), 0))
            there.append((start, len(piece), 0))
            start += len(piece)
        raw = self.raw
        handle = raw.initialize_xfer("READ", raw.get_xfer_descs(here, RAM), raw.get_xfer_descs(there, RAM), peer)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        raw.transfer(handle)
        self._reads[handle] = done
        if self._polling is None:
            self._polling = loop.call_later(POLL_S, self._poll)
        return done

    def _poll(self) -> None:
        for handle, done in list(self._reads.items()):
            if (state := self._state(handle)) != "PROC":
                self._over(handle, done, state)
        self._polling = asyncio.get_running_loop().call_later(POLL_S, self._poll) if self._reads else None

    def _state(self, handle: Any) -> str:
        try:
            return str(self.raw.check_xfer_state(handle))
        except self.library.errors as error:
            return f"ERR: {error}"

    def _over(self, handle: Any, done: asyncio.Future[None], state: str) -> None:
        try:
            self.raw.release_xfer_handle(handle)
        except self.library.errors as error:
            LOG.debug("a read cannot be given up yet: %s", error)
            return  # it may still land: it stays under way, and its pages in quarantine
        del self._reads[handle]
        if done.cancelled():
            return
        if state == "DONE":
            done.set_result(None)
        else:
            done.set_exception(LaneError(f"a read of pages failed: {state}"))


class Lent(WriterEnd):
    """The writer's end: registered memory that the peer's agent may read."""

    name = "nixl"
    fence = Fence.KEY
    ordered = False  # a frame is fetched after the message that names it: a last word waits until all are

    def __init__(self, agent: Agent, slot_bytes: int) -> None:
        """Raises one of the library's errors, or OSError."""
        self._map = mmap.mmap(-1, max(SLOTS_BYTES // slot_bytes, 1) * slot_bytes)
        memory = memoryview(self._map)
        super().__init__(memory, slot_bytes)
        self._agent = agent
        self._registered = agent.register(memory)
        self.start = address_of(memory)
        self.size = len(memory)
        self.key = bytes(agent.raw.get_partial_agent_metadata(self._registered, inc_conn_info=True))
        self.closed = False

    def close(self) -> None:
        """Its key ends with the connection."""
        if self.closed:
            return
        self.closed = True
        with contextlib.suppress(*self._agent.library.errors):
            self._agent.raw.deregister_memory(self._registered)
        with contextlib.suppress(BufferError):
            self._memory.release()
            self._map.close()


class Reader(ReaderEnd):
    """The reader's end."""

    name = "nixl"
    fence = Fence.KEY
    ordered = False

    def __init__(self, agent: Agent, peer: str, start: int, size: int) -> None:
        super().__init__(size)
        self._agent = agent
        self._peer = peer
        self._start = start
        self._forgotten = False

    def fetch(self, at: int, pieces: Sequence[memoryview]) -> asyncio.Future[None]:
        """Raises WireError outside of what was lent, LaneError where the library refuses."""
        self.check(at, pieces)
        if self._forgotten:
            raise LaneError("the peer's memory is not read any more")
        try:
            return self.flying.add(self._agent.read(self._peer, self._start + at, pieces))
        except self._agent.library.errors as error:
            raise LaneError(f"pages cannot be read: {error}") from error

    @property
    def over(self) -> bool:
        """Nothing of it can land any more, and the peer may be met anew."""
        return self._forgotten and not self.flying

    def revoke(self) -> bool:
        """Forget the peer's agent: the library gives up what is under way. True: nothing is any more."""
        if not self._forgotten:
            self._forgotten = True
            with contextlib.suppress(*self._agent.library.errors):
                self._agent.raw.remove_remote_agent(self._peer)
        return not self.flying

    def close(self) -> None:
        """The connection is gone: nothing new is read."""
        self.revoke()


class Nixl:
    """Workers with the nixl package, on any machines that UCX can connect."""

    name = "nixl"
    fence = Fence.KEY

    def __init__(self, slot_bytes: int) -> None:
        """Raises BackendError."""
        self._slot_bytes = slot_bytes
        self._agent = Agent(load_library())
        self._errors: tuple[type[Exception], ...] = (OSError, ValueError, *self._agent.library.errors)
        self._lent: list[Lent] = []
        self._readers: dict[str, Reader] = {}

    def open(self, memory: memoryview) -> None:
        """The worker's pages, which reads go into. Raises BackendError."""
        try:
            self._agent.register(memory)
        except self._agent.library.errors as error:
            raise BackendError(f"--transfer-backend nixl: the KV pages cannot be registered: {error}") from error

    def lend(self) -> tuple[Lane, Lend] | None:
        """New registered memory, unless there is too much or the library has none."""
        self._lent = [lent for lent in self._lent if not lent.closed]
        if len(self._lent) >= LANES_AT_MOST:
            return None
        try:
            lent = Lent(self._agent, self._slot_bytes)
        except self._errors as error:
            LOG.warning("no registered memory: %s", error)
            return None
        self._lent.append(lent)
        return lent, Lend(backend=self.name, where=f"{lent.start:x}", token=b"", size=lent.size, key=lent.key)

    async def borrow(self, lend: Lend) -> Lane:
        """Raises LaneError."""
        if lend.backend != self.name:
            raise LaneError(f"this worker's backend is {self.name}, the peer lends {lend.backend}")
        self._readers = {peer: reader for peer, reader in self._readers.items() if not reader.over}
        try:
            start = int(lend.where, 16)
            peer = bytes(self._agent.raw.add_remote_agent(lend.key)).decode()
        except self._errors as error:
            raise LaneError(f"the peer's agent cannot be added: {error}") from error
        if peer in self._readers:
            raise LaneError("the peer's agent is in use by an earlier connection")
        reader = self._readers[peer] = Reader(self._agent, peer, start, lend.size)
        return reader

    def close(self) -> None:
        """Lanes go with their connections."""
