"""The KV pages of all ranks of a tensor-parallel worker: memory that they share, of which each computes over its own.

Rank 0 alone moves pages: out of every rank's store into what a decode worker's ranks want, and the other way. Between
two steps nobody computes, and the sum that ends a step tells rank 0 that every rank has written its part.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import TYPE_CHECKING

import torch

from tandem_worker.engine.store import KvStore
from tandem_worker.transfer.reshard import holder_of, shares_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from tandem_worker.engine.model import LoadedModel
    from tandem_worker.engine.request import EngineSettings


def make_memory(settings: EngineSettings) -> int:
    """A nameless file for the pages of all ranks, `kv_memory_mib` each, that nobody can make smaller; its descriptor.

    Raises OSError.
    """
    file = os.memfd_create("kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file, settings.tensor_parallel * settings.kv_memory_mib << 20)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return file


def regions_of(memory: mmap.mmap, settings: EngineSettings) -> Tensor:
    """[ranks, bytes] uint8: the memory of each rank's pages."""
    return torch.frombuffer(memory, dtype=torch.uint8).view(settings.tensor_parallel, -1)


def make_store(model: LoadedModel, settings: EngineSettings) -> KvStore:
    """The pages of a worker, on however many ranks. Raises ModelLoadError."""
    if model.leader is None:
        return KvStore(model.info, settings, model.decoder.dtype)
    return RankedStore(model, settings, model.leader.memory)


class RankedStore(KvStore):
    """Rank 0's: `tensor` has its own heads, what goes in or out has all of them."""

    def __init__(self, model: LoadedModel, settings: EngineSettings, memory: mmap.mmap) -> None:
        """Raises ModelLoadError."""
        regions = regions_of(memory, settings)
        heads = model.decoder.config.kv_heads
        super().__init__(model.info, settings, model.decoder.dtype, heads, regions[0])
        self.ranks = tuple(self.shaped(region) for region in regions)
        self.raw = memoryview(memory)  # every rank's, one after the other
        self._region_bytes = regions.shape[1]
        self._shares = shares_of(len(self.ranks), model.info.kv_heads)

    def memory(self, pages: Sequence[int]) -> list[memoryview]:
        """Page by page, share by share; of ranks that hold the same heads the first one's memory."""
        holders = [holder_of(share, len(self.ranks), self._shares) for share in range(self._shares)]
        size = self.page_bytes
        starts = [rank * self._region_bytes + page * size for page in pages for rank in holders]
        return [self.raw[start : start + size] for start in starts]

    def filled(self, pages: Sequence[int]) -> None:
        """Ranks that hold the same heads as the one that was written get a copy."""
        with torch.inference_mode():
            for rank, copy in enumerate(self.ranks):
                holder = holder_of(rank * self._shares // len(self.ranks), len(self.ranks), self._shares)
                for page in pages if rank != holder else ():
                    copy[page].copy_(self.ranks[holder][page])
