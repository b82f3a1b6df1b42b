"""The KV pages of all ranks of a tensor-parallel worker: memory that they share, of which each computes over its own.

Rank 0 alone moves pages: out of every rank's store into what a decode worker's ranks want, and the other way. Between
two steps nobody computes, and the sum that ends a step tells rank 0 that every rank has written its part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tandem_worker.engine.staging import StagedStore
from tandem_worker.engine.store import KvStore, make_file
from tandem_worker.transfer.reshard import holder_of, shares_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from tandem_worker.engine.memory import MemoryFile
    from tandem_worker.engine.model import LoadedModel
    from tandem_worker.engine.request import EngineSettings


def memory_of_ranks(settings: EngineSettings) -> MemoryFile:
    """For the pages of all ranks, `kv_memory_mib` each. Raises ModelLoadError."""
    return make_file(settings.tensor_parallel * settings.kv_memory_mib << 20)


def region_of(memory: Tensor, rank: int, settings: EngineSettings) -> Tensor:
    """The part of it that is this rank's."""
    return memory.view(settings.tensor_parallel, -1)[rank]


def make_store(model: LoadedModel, settings: EngineSettings) -> KvStore:
    """The pages of a worker, on however many ranks. Raises ModelLoadError."""
    if settings.device == "cuda":
        config = model.decoder.config
        return StagedStore(model.info, settings, model.decoder.dtype, model.decoder.device, config.kv_heads)
    if model.leader is None:
        return KvStore(model.info, settings, model.decoder.dtype)
    return RankedStore(model, settings, model.leader.memory)


def pages_of_rank(model: LoadedModel, settings: EngineSettings, rank: int, memory: Tensor) -> Tensor:
    """The KV tensor of a rank but the first. `memory`: the pages of all ranks, of which a GPU's are none.

    Raises ModelLoadError.
    """
    if settings.device == "cuda":
        return make_store(model, settings).tensor
    region = region_of(memory, rank, settings)
    return KvStore(model.info, settings, model.decoder.dtype, model.decoder.config.kv_heads, region).tensor


class RankedStore(KvStore):
    """Rank 0's: `tensor` has its own heads, what goes in or out has all of them."""

    def __init__(self, model: LoadedModel, settings: EngineSettings, file: MemoryFile) -> None:
        """Raises ModelLoadError."""
        memory, heads = file.bytes, model.decoder.config.kv_heads
        super().__init__(model.info, settings, model.decoder.dtype, heads, region_of(memory, 0, settings))
        self.ranks = tuple(self.shaped(region_of(memory, one, settings)) for one in range(settings.tensor_parallel))
        self.file = file
        self.raw = memoryview(file.map)  # every rank's, one after the other
        self.shares = shares_of(len(self.ranks), model.info.kv_heads)
        self.whole_bytes = self.page_bytes * self.shares
        self._region_bytes = len(self.raw) // len(self.ranks)

    def memory(self, pages: Sequence[int]) -> list[memoryview]:
        """Page by page, share by share; of ranks that hold the same heads the first one's memory."""
        holders = [holder_of(share, len(self.ranks), self.shares) for share in range(self.shares)]
        size = self.page_bytes
        starts = [rank * self._region_bytes + page * size for page in pages for rank in holders]
        return [self.raw[start : start + size] for start in starts]

    def filled(self, pages: Sequence[int]) -> None:
        """Ranks that hold the same heads as the one that was written get a copy."""
        with torch.inference_mode():
            for rank, copy in enumerate(self.ranks):
                holder = holder_of(rank * self.shares // len(self.ranks), len(self.ranks), self.shares)
                for page in pages if rank != holder else ():
                    copy[page].copy_(self.ranks[holder][page])
