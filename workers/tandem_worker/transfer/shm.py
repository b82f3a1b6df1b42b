"""Pages through memory that two workers of one machine share; the control connection says where in it they lie.

The prefill worker makes a sealed memory file for each connection and copies frames into its slots; the decode worker
maps it, and a thread of its own copies them into its pages while the writer copies the next. So the writer never holds
a mapping of anybody's KV pages: one that is stopped in the middle of a write spoils a slot that no message names. The
fence is the end of the copy under way. (Pages shared with the writer would save a copy, but a stopped writer cannot be
unmapped, and could write to everybody's.) A decode worker refuses a file that could shrink under it; the token that
opens it came over the proven connection.
"""

from __future__ import annotations

import asyncio
import contextlib
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

from tandem_worker.transfer.base import Fence, LaneError
from tandem_worker.transfer.slots import SLOTS_BYTES, Fetchers, ReaderEnd, WriterEnd, copy
from tandem_worker.transfer.wire import Lend

if TYPE_CHECKING:
    from tandem_worker.transfer.base import Lane

LOG = logging.getLogger(__name__)
ARENAS_AT_MOST: Final = 32  # further connections use tcp
TOKEN_BYTES: Final = 32
DOOR_S: Final = 2.0
SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Arena(WriterEnd):
    """The writer's end: a sealed memory file."""

    name = "shm"
    fence = Fence.KEY
    ordered = False  # a frame is copied after the message that names it: a last word waits until all are

    def __init__(self, slot_bytes: int, door: Door) -> None:
        """Raises OSError where the machine has no memory files."""
        self.size = max(SLOTS_BYTES // slot_bytes, 1) * slot_bytes
        descriptor = os.memfd_create("tandem-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, self.size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
            self._map = mmap.mmap(descriptor, self.size)
            self.token = door.admit(descriptor)
        except OSError:
            os.close(descriptor)
            raise
        self._door = door
        super().__init__(memoryview(self._map), slot_bytes)
        self.closed = False

    def close(self) -> None:
        """The memory goes with the last of its two mappings."""
        self.closed = True
        self._door.forget(self.token)
        with contextlib.suppress(BufferError):
            self._memory.release()
            self._map.close()


class Window(ReaderEnd):
    """The reader's end."""

    name = "shm"
    fence = Fence.KEY
    ordered = False  # a frame is copied after the message that names it: a last word waits until all are

    def __init__(self, descriptor: int, size: int) -> None:
        """Takes the descriptor over. Raises LaneError where the memory is not as it was said to be."""
        super().__init__(size)
        try:
            if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & SEALS != SEALS:
                raise LaneError("the peer's memory file may change its size")
            if os.fstat(descriptor).st_size != size:
                raise LaneError(f"the peer's memory file has {os.fstat(descriptor).st_size} B, not {size}")
            self._map = mmap.mmap(descriptor, size)
        except OSError as error:
            raise LaneError(f"the peer's memory file cannot be mapped: {error}") from error
        finally:
            os.close(descriptor)
        self._view = memoryview(self._map)
        self._fetchers = Fetchers(self.name, 1, self.flying)
        self._closed = False

    def fetch(self, at: int, pieces: Sequence[memoryview]) -> asyncio.Future[None]:
        """The one copy on this side, by a thread: the event loop has better to do. Raises WireError outside of it."""
        self.check(at, pieces)
        return self._fetchers.add(lambda: self._copy(at, pieces))

    def _copy(self, at: int, pieces: Sequence[memoryview]) -> str:
        for piece in pieces:
            copy(self._view[at : at + len(piece)], piece)
            at += len(piece)
        return ""

    def revoke(self) -> bool:
        """Nobody but this end's thread writes to its pages. True: it does not."""
        self.close()
        return not self.flying

    def close(self) -> None:
        """Unmap, unless a copy out of it is under way; then that copy's end does."""
        if self._closed:
            return
        self._closed = True
        self._fetchers.close()
        with contextlib.suppress(BufferError):
            self._view.release()
            self._map.close()


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
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self.path.unlink(missing_ok=True)
        for token in list(self._waiting):
            self.forget(token)

    def _serve(self) -> None:
        while True:
            try:
                visitor, _ = self._socket.accept()
            except OSError:
                return  # closed
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

    def __init__(self, directory: Path, slot_bytes: int) -> None:
        """`slot_bytes`: one frame. Raises OSError where no socket can be made in `directory`."""
        self._slot_bytes = slot_bytes
        self._door = Door(directory)
        self._arenas: list[Arena] = []

    def lend(self) -> tuple[Lane, Lend] | None:
        """A new arena, unless there are too many or the machine has none."""
        self._arenas = [arena for arena in self._arenas if not arena.closed]
        if len(self._arenas) >= ARENAS_AT_MOST:
            return None
        try:
            arena = Arena(self._slot_bytes, self._door)
        except OSError as error:
            LOG.warning("no shared memory: %s", error)
            return None
        self._arenas.append(arena)
        return arena, Lend(backend=self.name, where=str(self._door.path), token=arena.token, size=arena.size)

    async def borrow(self, lend: Lend) -> Lane:
        """Raises LaneError."""
        if lend.backend != self.name:
            raise LaneError(f"this worker's backend is {self.name}, the peer lends {lend.backend}")
        return Window(await asyncio.to_thread(fetch, lend.where, lend.token), lend.size)

    def open(self, memory: memoryview) -> None:
        """The reader copies into its own pages by itself."""

    def close(self) -> None:
        """Lanes go with their connections."""
        self._door.close()
