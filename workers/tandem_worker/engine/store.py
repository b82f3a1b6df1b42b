"""The KV tensor: where pages' contents are, and how they get in and out."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from tandem_worker.engine.kv_format import kv_format
from tandem_worker.engine.lending import copied, runs
from tandem_worker.engine.memory import MemoryFile, memory_file, own_memory
from tandem_worker.engine.request import EngineSettings, InvalidRequestError, ModelInfo, ModelLoadError
from tandem_worker.transfer.reshard import reshard

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from tandem_worker.engine.lending import Loan

LOG = logging.getLogger(__name__)


class KvStore:
    """[pages, layers, 2, page_tokens, kv_heads, row]: a page is one contiguous piece, as it goes over the wire.

    `in_place`: a transfer may read and write pages where they lie; `refusal`: why they cannot travel, "": they can.
    """

    tensor: Tensor
    ranks: tuple[Tensor, ...]
    raw: memoryview
    file: MemoryFile | None = None
    in_place = True
    refusal = ""

    def __init__(
        self,
        info: ModelInfo,
        settings: EngineSettings,
        dtype: torch.dtype,
        kv_heads: int | None = None,
        region: Tensor | None = None,
    ) -> None:
        """`kv_heads`: this rank's, where it has not all of them; `region`: zeroed bytes for the pages, made if None.

        Raises ModelLoadError when one sequence of `max_context` tokens would not fit.
        """
        kv_heads = kv_heads or info.kv_heads
        form = kv_format(settings.kv, dtype, info.head_dim)
        self.page_shape, dtype = (info.layers, 2, settings.page_tokens, kv_heads, form.row), form.dtype
        self.page_bytes = page_bytes = torch.Size(self.page_shape).numel() * dtype.itemsize
        self.dtype = dtype
        self._kv_heads = info.kv_heads
        self.shares = 1  # parts that a page is in, each in the memory of one rank
        self.whole_bytes = page_bytes  # of a page with all of its parts
        self.pages = settings.kv_memory_mib * 2**20 // page_bytes
        least = -(-settings.max_context // settings.page_tokens) + 1
        if self.pages < least:
            raise ModelLoadError(
                f"--kv-memory-mib {settings.kv_memory_mib} holds {self.pages} pages of {page_bytes} bytes, less than "
                f"the {least} of one sequence of --max-context {settings.max_context}; "
                f"give at least {-(-least * page_bytes // 2**20)} MiB"
            )
        LOG.info(
            "%d KV pages: %d MiB / %d B a page (%d layers x K and V x %d tokens x %d KV heads x %d x %d B); "
            "%d tokens, or %d sequences of %d",
            *(self.pages, settings.kv_memory_mib, page_bytes, info.layers, settings.page_tokens, kv_heads),
            *(form.row, dtype.itemsize, self.pages * settings.page_tokens),
            *(self.pages * settings.page_tokens // settings.max_context, settings.max_context),
        )
        self.place(settings, region)

    def place(self, settings: EngineSettings, region: Tensor | None) -> None:
        """Memory for the pages: zeros, for a masked row of a page must not hold NaN, which 0 x NaN would spread."""
        if region is None:
            self.file = make_file(self.pages * self.page_bytes) if settings.shared_memory else None
            region = own_memory(self.pages * self.page_bytes) if self.file is None else self.file.bytes
        self.tensor = self.shaped(region)
        self.ranks = (self.tensor,)
        # numpy has no bfloat16: the same memory, seen as bytes.
        self.raw = self.tensor.view(-1).view(torch.uint8).numpy().data

    def shaped(self, region: Tensor) -> Tensor:
        """Bytes as pages."""
        used = region[: self.pages * self.page_bytes]
        return used.view(self.dtype).view(self.pages, *self.page_shape)

    def read(self, pages: Sequence[int], shares: int = 1) -> Tensor:
        """A contiguous copy of the pages, an ordinary tensor, which its owner may change.

        [n, shares, layers, 2, page_tokens, kv_heads / shares, head_dim], without `shares` where it is 1: a page as the
        ranks of a decode worker hold it. Every byte is copied once, wherever it lies.
        """
        with torch.inference_mode(mode=False):
            if shares == len(self.ranks) == 1:
                return self.tensor.index_select(0, torch.tensor(pages, device=self.tensor.device)).cpu()
            return self._resharded(pages, shares)

    def _resharded(self, pages: Sequence[int], shares: int) -> Tensor:
        layers, two, tokens, _, size = self.page_shape
        out = torch.empty((len(pages), shares, layers, two, tokens, self._kv_heads // shares, size), dtype=self.dtype)
        for part in reshard(self._kv_heads, len(self.ranks), shares):
            source = self.ranks[part.source_rank].narrow(-2, part.source_head, part.heads)
            target = out[:, part.target_rank].narrow(-2, part.target_head, part.heads)
            for at, page in enumerate(pages):
                target[at].copy_(source[page])
        return out

    def lend(self, pages: Sequence[int], shares: int) -> Loan:
        """A copy of the pages outside of the store, see `read`."""
        return copied(self.read(pages, shares), len(pages))

    def check_travel(self) -> None:
        """Raises InvalidRequestError where pages cannot travel."""
        if self.refusal:
            raise InvalidRequestError(self.refusal)

    def stage(self, pages: Sequence[int]) -> bool:  # noqa: ARG002 (for those that need it)
        """Make ready for a transfer into these pages. False: no room for that now, and nothing was done."""
        return True

    def unstage(self, pages: Sequence[int]) -> None:
        """Nothing can come into these pages any more. Twice is harmless."""

    def memory(self, pages: Sequence[int]) -> list[memoryview]:
        """The pages' bytes themselves, in their order; neighbours are one piece."""
        return runs(self.raw, self.page_bytes, pages)

    def filled(self, pages: Sequence[int]) -> None:
        """What `memory` showed of these pages has been written."""

    def blank(self, page: int, rows: int) -> None:
        """Zero what lies behind the first `rows` rows: what a sender left behind its prompt may be anything."""
        with torch.inference_mode():
            for tensor in self.ranks:
                tensor[page, :, :, rows:] = 0

    def clear(self, pages: Sequence[int]) -> None:
        """Zero pages whose contents may be no numbers, before somebody else gets them."""
        if pages:
            with torch.inference_mode():
                for tensor in self.ranks:
                    tensor[torch.tensor(pages)] = 0


def make_file(size: int) -> MemoryFile:
    """The pages' memory, for other processes too. Raises ModelLoadError."""
    try:
        return memory_file(size)
    except OSError as error:
        raise ModelLoadError(f"no memory file of {size} B for the KV pages: {error}; use another backend") from error
