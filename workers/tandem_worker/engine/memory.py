"""Memory for KV pages: the process' own, or a file of memory that other processes of the machine may be shown."""

from __future__ import annotations

import fcntl
import mmap
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from torch import Tensor

# Named in <linux/fcntl.h> since 5.1, in Python's fcntl not yet: who wrote before may go on, nobody else ever may.
F_SEAL_FUTURE_WRITE: Final = 0x0010
SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL


@dataclass(frozen=True, slots=True)
class MemoryFile:
    """Zeroed memory without a name, whose size is fixed."""

    descriptor: int
    map: mmap.mmap

    @property
    def bytes(self) -> Tensor:
        """All of it, uint8."""
        return torch.frombuffer(self.map, dtype=torch.uint8)

    def seal(self) -> None:
        """Whoever has mapped it may go on writing; all later mappings can but read. Twice is harmless.

        Raises OSError before Linux 5.1.
        """
        if fcntl.fcntl(self.descriptor, fcntl.F_GET_SEALS) & SEALS != SEALS:
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, SEALS)

    def reader(self) -> int:
        """A descriptor that can only be read, its receiver's own. Raises OSError."""
        return os.open(f"/proc/self/fd/{self.descriptor}", os.O_RDONLY | os.O_CLOEXEC)


def memory_file(size: int) -> MemoryFile:
    """Raises OSError where the machine has no such memory: now, for a page that is not there later is a SIGBUS."""
    descriptor = os.memfd_create("tandem-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        os.posix_fallocate(descriptor, 0, size)
        memory = mmap.mmap(descriptor, size)
    except OSError:
        os.close(descriptor)
        raise
    huge(memory)
    return MemoryFile(descriptor, memory)


def own_memory(size: int) -> Tensor:
    """Zeroed bytes of this process alone, uint8."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    huge(memory)
    return torch.frombuffer(memory, dtype=torch.uint8)


def mapped(descriptor: int) -> Tensor:
    """All of a memory file that another process made, uint8, to read and write. Raises OSError."""
    memory = mmap.mmap(descriptor, 0)
    huge(memory)
    return MemoryFile(descriptor, memory).bytes


def huge(memory: mmap.mmap) -> None:
    """Ask for huge pages, of which a reader of other machines or processes pins and looks up fewer: a wish only."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            return
