"""Pages in place, between two workers of one machine: the decode worker copies them out of the other's memory.

The prefill worker's pages lie in a sealed memory file, of which the decode worker gets a descriptor that can only be
read; it maps the file, and a thread of its own copies what a message names into its own pages. So each byte is copied
once, nobody ever writes to another worker's pages, and the fence is the end of the copy under way. The prefill worker
lends what it names until `taken`, or until it has given the connection up: a last word comes only after the first, so
what is read after the second is never used. A decode worker refuses a file that could shrink under it or has holes
(SIGBUS, where memory is short); the token that opens it came over the proven connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import logging
import mmap
import os
import secrets
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tandem_worker.engine.memory import SEALS, huge
from tandem_worker.engine.native.library import find_copy
from tandem_worker.transfer.base import BackendError, Fence, LaneError
from tandem_worker.transfer.ends import NO_MEMORY, Move, ReaderEnd, WriterEnd, address_of, size_of
from tandem_worker.transfer.probe import PROBE_BYTES
from tandem_worker.transfer.wire import Lend, Span

if TYPE_CHECKING:
    from tandem_worker.engine.memory import MemoryFile
    from tandem_worker.transfer.base import Lane

LOG = logging.getLogger(__name__)
TOKEN_BYTES: Final = 32
DOOR_S: Final = 2.0
AGAIN_S: Final = 0.1  # below DOOR_S: whoever knocked meanwhile is still there
BLOCK: Final = 512  # of `st_blocks`, whatever the file system's is
SMALL_BYTES: Final = 512 * 1024  # copied by the event loop itself: a thread's waking would take as long
LARGE_BYTES: Final = 1024 * 1024  # copied past the caches, which have no room for it


class Lent(WriterEnd):
    """The writer's end: a token for the memory file, good until the connection's end or its first use."""

    name = "shm"
    fence = Fence.KEY

    def __init__(self, memory: memoryview, file: MemoryFile, door: Door) -> None:
        """Raises OSError where no descriptor can be had."""
        super().__init__(memory)
        self._door = door
        self.token = door.admit(file.reader())

    def close(self) -> None:
        """Nobody comes for it any more."""
        self._door.forget(self.token)


class Window(ReaderEnd):
    """The reader's end."""

    name = "shm"
    fence = Fence.KEY

    def __init__(self, descriptor: int, size: int) -> None:
        """Takes the descriptor over. Raises LaneError where the memory is not as it was said to be."""
        try:
            if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & SEALS != SEALS:
                raise LaneError("the peer's memory file may change its size or its other readers")
            if (file := os.fstat(descriptor)).st_size != size:
                raise LaneError(f"the peer's memory file has {file.st_size} B, not {size}")
            if file.st_blocks * BLOCK < size:
                raise LaneError(f"the peer's memory file has holes: {file.st_blocks * BLOCK} B of {size} are there")
            self._map = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
        except OSError as error:
            raise LaneError(f"the peer's memory file cannot be mapped: {error}") from error
        finally:
            os.close(descriptor)
        huge(self._map)
        self._start = address_of(memoryview(self._map))
        self._past_caches = find_copy()  # here, not with the first page: it reads files
        super().__init__(self.name, size, memoryview(bytearray(PROBE_BYTES)), 1, self._copy)

    def fetch(self, spans: Sequence[Span], pieces: Sequence[memoryview]) -> asyncio.Future[None] | None:
        """The only copy, by a thread unless it is small. Raises WireError outside of what was lent, LaneError."""
        moves = self.moves(spans, pieces)
        if size_of(pieces) > SMALL_BYTES or self.flying:
            return self._fetchers.add(moves)
        if wrong := self._copy(moves):
            raise LaneError(wrong)
        return None

    def _copy(self, moves: list[Move]) -> str:
        try:
            for at, target, size in moves:
                copy = ctypes.memmove if size < LARGE_BYTES else self._past_caches  # the interpreter is free meanwhile
                copy(target, self._start + at, size)
        except MemoryError:  # before a copy or behind it: none is under way
            return NO_MEMORY
        return ""


class Door:
    """A unix socket that gives a memory file to whoever shows its token, once. Only processes of this machine can."""

    def __init__(self, directory: Path) -> None:
        """Raises OSError where no socket can be made in `directory`."""
        sweep(directory)
        self.path = directory / f"tandem-kv-{os.getpid()}-{secrets.token_hex(4)}.sock"
        # It gets its name once somebody answers: a name at which nobody does is a dead worker's, and is swept away.
        early = self.path.with_suffix(".new")
        self._lock = threading.Lock()
        self._waiting: dict[bytes, int] = {}
        self._closed = threading.Event()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(early))
        early.chmod(0o600)
        self._socket.listen(16)
        early.rename(self.path)
        threading.Thread(target=self._serve, name="shm-door", daemon=True).start()

    def admit(self, descriptor: int) -> bytes:
        """A token for this file; the descriptor is the door's from now on."""
        token = secrets.token_bytes(TOKEN_BYTES)
        with self._lock:
            self._waiting[token] = descriptor
        return token

    def forget(self, token: bytes) -> None:
        """Nobody will come for it. Twice is harmless."""
        with self._lock:
            descriptor = self._waiting.pop(token, None)
        if descriptor is not None:
            os.close(descriptor)

    def close(self) -> None:
        """Nobody else gets in."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self.path.unlink(missing_ok=True)
        for token in list(self._waiting):
            self.forget(token)

    def _serve(self) -> None:
        while not self._closed.is_set():
            try:
                self._let_in()
            except (OSError, MemoryError) as error:  # closed; or short of descriptors or memory, which passes
                if not self._closed.wait(AGAIN_S):
                    LOG.warning("nobody could be let in to the shared memory just now: %s", error or "no memory")

    def _let_in(self) -> None:
        visitor, _ = self._socket.accept()
        with visitor, contextlib.suppress(OSError):
            visitor.settimeout(DOOR_S)
            self._answer(visitor)

    def _answer(self, visitor: socket.socket) -> None:
        token = visitor.recv(TOKEN_BYTES, socket.MSG_WAITALL)
        with self._lock:
            descriptor = self._waiting.pop(token, None)
        if descriptor is None:
            return
        try:
            socket.send_fds(visitor, [b"+"], [descriptor])
        finally:
            os.close(descriptor)


def sweep(directory: Path) -> None:
    """Take away the doors of this user's workers that were killed: those at which nobody answers."""
    for path in directory.glob("tandem-kv-*.sock"):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as door:
            if path.stat().st_uid != os.geteuid() or not path.is_socket():
                continue
            door.settimeout(DOOR_S)
            try:
                door.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
                LOG.info("%s was left by a worker that is no more: removed", path)


def fetch(path: str, token: bytes) -> int:
    """The descriptor behind a door. Raises LaneError: another machine, another root directory, or too late."""
    try:
        with socket.socket(socket.AF_UNIX) as door:
            door.settimeout(DOOR_S)
            door.connect(path)
            door.sendall(token)
            _, descriptors, _, _ = socket.recv_fds(door, 1, 1)
    except (OSError, ValueError) as error:
        raise LaneError(f"no shared memory with the peer at {path[:100]!r}: {error}") from error
    if not descriptors:
        raise LaneError("the peer's door gave no memory file")
    return descriptors[0]


class Shm:
    """Workers of one machine, in whatever pods, that see the same directory."""

    name = "shm"
    fence = Fence.KEY

    def __init__(self, directory: Path) -> None:
        """Raises OSError where no socket can be made in `directory`."""
        self._door = Door(directory)
        self._memory = memoryview(b"")
        self._file: MemoryFile | None = None

    def open(self, memory: memoryview, file: MemoryFile | None) -> None:
        """Raises BackendError for pages that lie in this process alone."""
        if file is None:
            raise BackendError("--transfer-backend shm: the KV pages do not lie in a memory file")
        try:
            file.seal()
        except OSError as error:
            raise BackendError(f"--transfer-backend shm: the KV pages' file cannot be sealed: {error}") from error
        self._memory, self._file = memory, file

    def lend(self) -> tuple[Lane, Lend] | None:
        """A token for the pages' file."""
        if self._file is None:
            return None
        try:
            lent = Lent(self._memory, self._file, self._door)
        except OSError as error:
            LOG.warning("no shared memory: %s", error)
            return None
        return lent, Lend(backend=self.name, where=str(self._door.path), token=lent.token, size=len(self._memory))

    async def borrow(self, lend: Lend) -> Lane:
        """Raises LaneError."""
        if lend.backend != self.name:
            raise LaneError(f"this worker's backend is {self.name}, the peer lends {lend.backend}")
        return Window(await asyncio.to_thread(fetch, lend.where, lend.token), lend.size)

    def close(self) -> None:
        """Lanes go with their connections."""
        self._door.close()
