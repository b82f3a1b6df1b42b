"""Attention over KV pages behind one interface: torch's own on any device, FlashInfer's kernels where they serve.

A pass is planned from the batch as the host has it, once; then each layer runs it on the device.
"""

from __future__ import annotations

import importlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch
import torch.nn.functional as fn

if TYPE_CHECKING:
    from torch import Tensor

    from tandem_worker.engine.config import ModelConfig
    from tandem_worker.engine.decoder import Batch, Group
    from tandem_worker.engine.kv_format import KvFormat

LOG = logging.getLogger(__name__)
WORKSPACE_BYTES: Final = 128 << 20  # what FlashInfer's documentation gives each wrapper
HEAD_DIMS: Final = (64, 128, 256)  # of FlashInfer's prebuilt kernels


class Attention(Protocol):
    """`mask_dtype`: of the masks that it wants in a batch; None: it goes by positions."""

    mask_dtype: torch.dtype | None

    def plan(self, batch: Batch, page_tokens: int) -> None:
        """Get ready for this batch, whose tensors are still the host's."""

    def run(self, queries: Tensor, kv: Tensor, batch: Batch, *, windowed: bool) -> Tensor:
        """One layer. queries: [rows, heads, head_dim], turned; kv: [pages, 2, page_tokens, kv_heads, row]; as queries.

        Of the batch that was planned, whose tensors are the device's by now.
        """

    def fixed(self, rows: int, width: int) -> Attention:
        """One for decode batches of exactly so many rows, of at most `width` pages each, that a graph may capture."""


class TorchAttention:
    """Gathers a group's pages and attends to them by torch's scaled dot product."""

    def __init__(self, form: KvFormat, dtype: torch.dtype) -> None:
        self.mask_dtype: torch.dtype | None = dtype
        self._form = form

    def plan(self, batch: Batch, page_tokens: int) -> None:
        """Nothing to do."""

    def run(self, queries: Tensor, kv: Tensor, batch: Batch, *, windowed: bool) -> Tensor:
        """See Attention."""
        parts: list[Tensor] = []
        start = 0
        for group in batch.groups:
            end = start + group.sequences * group.rows
            mask = group.seen_by(windowed=windowed)
            parts.append(attend_group(queries[start:end], group, kv, mask, self._form))
            start = end
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def fixed(self, rows: int, width: int) -> TorchAttention:  # noqa: ARG002 (the interface's)
        """It holds nothing."""
        return self


def attend_group(queries: Tensor, group: Group, kv: Tensor, mask: Tensor | None, form: KvFormat) -> Tensor:
    """Attention of one group. queries: [sequences * rows, heads, head_dim], and so is the result."""
    # [sequences, keys, kv_heads, head_dim] each, keys in order since a sequence's pages are. Two gathers: one of both
    # would leave a gap between the pages' keys, and making them one run would be a second copy.
    shape = (group.sequences, -1, *kv.shape[-2:])
    rows = (kv[:, which].index_select(0, group.pages).view(shape).transpose(1, 2) for which in (0, 1))
    keys, values = (form.unpacked(side, queries.dtype) for side in rows)
    kv_heads, head_dim = kv.shape[-2], form.head_dim
    if mask is None:
        keys, values = keys[:, :, : group.rows], values[:, :, : group.rows]
    heads = queries.shape[1]
    if group.rows == 1:
        # The heads that share a KV head become the rows of one attention: its keys are read once.
        folded = queries.reshape(group.sequences, kv_heads, heads // kv_heads, head_dim)
        return fn.scaled_dot_product_attention(folded, keys, values, attn_mask=mask).reshape(-1, heads, head_dim)
    turned = queries.view(group.sequences, group.rows, heads, head_dim).transpose(1, 2)
    out = fn.scaled_dot_product_attention(turned, keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=True)
    return out.transpose(1, 2).reshape(-1, heads, head_dim)


@dataclass(frozen=True, slots=True)
class PageTable:
    """Which pages each sequence of a batch attends to, int32, in FlashInfer's compressed rows.

    `queries` and `starts`: [sequences + 1], where each one's rows and pages begin; `last`: rows in its last page.
    """

    queries: Tensor
    starts: Tensor
    pages: Tensor
    last: Tensor


def page_table(batch: Batch, page_tokens: int) -> PageTable:
    """Without the padding of the batch's groups. On the host."""
    rows, used, pages, last = [], [], [], []
    start = 0
    for group in batch.groups:
        end = start + group.sequences * group.rows
        lengths = batch.positions[start:end].view(group.sequences, group.rows)[:, -1] + 1
        counts = (lengths + page_tokens - 1) // page_tokens
        table = group.pages.view(group.sequences, -1)
        pages.append(table[torch.arange(table.shape[1]) < counts.unsqueeze(1)])
        rows += [group.rows] * group.sequences
        used.append(counts)
        last.append(lengths - (counts - 1) * page_tokens)
        start = end
    return PageTable(
        _starts(torch.tensor(rows)), _starts(torch.cat(used)), torch.cat(pages).int(), torch.cat(last).int()
    )


def _starts(counts: Tensor) -> Tensor:
    return fn.pad(torch.cumsum(counts, 0), (1, 0)).int()


class FlashInferAttention:
    """FlashInfer's paged kernels; they read pages where they lie, without masks and without a gathered copy."""

    mask_dtype: torch.dtype | None = None

    def __init__(
        self,
        module: Any,
        config: ModelConfig,
        dtype: torch.dtype,
        space: Tensor,
        fixed: dict[str, Tensor] | None = None,
    ) -> None:
        """`module`: flashinfer, its calls as published in 0.7.4; `space`: its scratch, on the device, shared by all.

        `fixed`: the buffers of an attention for graphs, which `plan` writes and a captured pass reads.
        """
        self._module, self._config, self._dtype, self._space = module, config, dtype, space
        graphs = {"use_cuda_graph": True, **fixed} if fixed else {}
        self._decode = module.BatchDecodeWithPagedKVCacheWrapper(space, "NHD", **graphs)
        self._prefill = None if fixed else module.BatchPrefillWithPagedKVCacheWrapper(space, "NHD")
        self._planned: Any = None

    def plan(self, batch: Batch, page_tokens: int) -> None:
        """See Attention."""
        table, config = page_table(batch, page_tokens), self._config
        sizes = (config.heads, config.kv_heads, config.head_dim, page_tokens)
        kinds = {"q_data_type": self._dtype, "kv_data_type": self._dtype}
        if self._prefill is None or all(group.rows == 1 for group in batch.groups):
            self._planned = self._decode
            self._decode.plan(table.starts, table.pages, table.last, *sizes, **kinds)
            return
        self._planned = self._prefill
        self._prefill.plan(table.queries, table.starts, table.pages, table.last, *sizes, causal=True, **kinds)

    def run(self, queries: Tensor, kv: Tensor, batch: Batch, *, windowed: bool) -> Tensor:  # noqa: ARG002 (the interface's)
        """See Attention."""
        out: Tensor = self._planned.run(queries.contiguous(), kv)
        return out

    def fixed(self, rows: int, width: int) -> FlashInferAttention:
        """See Attention."""
        sizes = {"indptr": rows + 1, "indices": rows * width, "last_page_len": rows}
        buffers = {
            f"paged_kv_{name}_buffer": torch.zeros(size, dtype=torch.int32, device=self._space.device)
            for name, size in sizes.items()
        }
        return FlashInferAttention(self._module, self._config, self._dtype, self._space, buffers)


def choose_attention(config: ModelConfig, form: KvFormat, dtype: torch.dtype, device: torch.device) -> Attention:
    """FlashInfer on CUDA where it is installed and serves this model, else torch's; the log says which, and why."""
    if device.type != "cuda":
        return TorchAttention(form, dtype)
    if (reason := _unserved(config, form, dtype)) is None:
        try:
            module = importlib.import_module("flashinfer")
        except ImportError as error:
            reason = f"it cannot be imported: {error}"
        else:
            LOG.info("attention runs on FlashInfer %s", getattr(module, "__version__", "of an unknown version"))
            space = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
            return FlashInferAttention(module, config, dtype, space)
    LOG.info("attention runs on torch alone, without FlashInfer: %s", reason)
    return TorchAttention(form, dtype)


def _unserved(config: ModelConfig, form: KvFormat, dtype: torch.dtype) -> str | None:
    if dtype == torch.float32:
        return "it has no fp32"
    if form.name:
        return "a page's 8-bit rows carry their scales, which it does not read"
    if config.traits.window is not None:
        return "some layers have a sliding window and some have not"
    if config.head_dim not in HEAD_DIMS:
        return f"heads of {config.head_dim} are not among {HEAD_DIMS}"
    return None
