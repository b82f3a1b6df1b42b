"""The decoder that all families share, over paged KV: RMSNorm, rotary embedding, grouped-query attention, SwiGLU.

One forward pass takes a ragged batch: all rows share the linear layers; attention runs group by group, each group
being sequences of about the same length with the same number of new tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as fn

from tandem_worker.engine.kv_format import KvFormat, kv_format
from tandem_worker.engine.linear import Linear, make_gated, make_linear
from tandem_worker.engine.rope import rotary_tables

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from tandem_worker.engine.config import ModelConfig
    from tandem_worker.engine.native.kernels import NativeKernels


@dataclass(frozen=True, slots=True)
class Group:
    """Consecutive rows of a batch that attend together: `sequences` of `rows` new tokens each.

    pages: [sequences * pages per sequence] int64, padded with any page; mask: additive, [sequences, 1, rows, keys] in
    the model's dtype, -inf where a key is padding or in the future; None: plain causal (rows == keys, one sequence).
    window_mask: the same for layers with a sliding window; None: no key is out of their sight, `mask` serves.
    """

    sequences: int
    rows: int
    pages: Tensor
    mask: Tensor | None
    window_mask: Tensor | None = None

    def seen_by(self, *, windowed: bool) -> Tensor | None:
        """The mask of one layer."""
        return self.window_mask if windowed and self.window_mask is not None else self.mask


@dataclass(frozen=True, slots=True)
class Batch:
    """tokens, positions, page, slot: [rows] int64; `wanted`: rows whose logits are asked for."""

    tokens: Tensor
    positions: Tensor
    page: Tensor
    slot: Tensor
    groups: tuple[Group, ...]
    wanted: Tensor


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer; q, k, v are one matrix, and so are gate and up (`gated`). `head_norms`: of queries and keys."""

    attention_norm: Tensor
    qkv: Linear
    output: Linear
    mlp_norm: Tensor
    gated: Linear
    down: Linear
    head_norms: tuple[Tensor, Tensor] | None
    windowed: bool


class Decoder:
    """A model on the CPU. KV store: [pages, layers, 2, page_tokens, kv_heads, row], see kv_format.py."""

    def __init__(
        self,
        config: ModelConfig,
        tensors: dict[str, Tensor],
        dtype: torch.dtype,
        context: int,
        native: NativeKernels | None = None,
        *,
        int8: bool = False,
        kv: str = "",
    ) -> None:
        """`tensors`: named as in Hugging Face's checkpoints, in `dtype`; taken out one by one to spare memory.

        `native`: None computes in torch, in `dtype`; else between weights and pages everything is fp32. `int8`: the
        layers' weights, not embedding and head. `kv`: how keys and values lie in pages, see kv_format.py.
        """
        self.config = config
        self.dtype = dtype
        self.mask_dtype = dtype if native is None else None  # native attention goes by positions
        self.kv_format = kv_format(kv, dtype, config.head_dim)
        self.reduce: Callable[[Tensor], Tensor] = lambda part: part  # see parallel.py
        self._native = native
        self._embedding = tensors.pop("model.embed_tokens.weight")
        self._layers = tuple(_layer(config, tensors, index, native, int8=int8) for index in range(config.layers))
        self._norm = _norm(tensors, "model.norm", native)
        self._head = make_linear(self._embedding if config.tied else tensors.pop("lm_head.weight"), None, native)
        if native is None:
            rope = (config.rope_theta, config.head_dim, config.rope_scaling)
            self._cos, self._sin = rotary_tables(*rope, context, dtype)

    def forward(self, batch: Batch, kv: Tensor) -> Tensor:
        """Write the batch's KV into `kv` and return the logits of the wanted rows, [wanted, vocab]."""
        hidden = self._embedding[batch.tokens]
        if self._native is not None:
            hidden = hidden.float()
        attend = self._attention(batch, kv)
        for index, layer in enumerate(self._layers):
            qkv = layer.qkv(self._normed(hidden, layer.attention_norm))
            hidden = hidden + self.reduce(layer.output(attend(layer, qkv, index)))
            hidden = hidden + self.reduce(layer.down(layer.gated(self._normed(hidden, layer.mlp_norm))))
        return self._head(self._normed(hidden[batch.wanted], self._norm))

    def _normed(self, hidden: Tensor, weight: Tensor) -> Tensor:
        if self._native is not None:
            return self._native.norm(hidden, weight)
        return fn.rms_norm(hidden, (self.config.hidden_size,), weight, self.config.rms_epsilon)

    def _attention(self, batch: Batch, kv: Tensor) -> Callable[[Layer, Tensor, int], Tensor]:
        """From a layer, its projections and its number to what its heads found; writes the layer's KV."""
        if self._native is not None:
            return self._native.attention(batch, kv, self.kv_format.name)
        rotary = (self._cos[batch.positions].unsqueeze(1), self._sin[batch.positions].unsqueeze(1))
        return lambda layer, qkv, index: self._attend(layer, qkv, rotary, batch, kv[:, index])

    def _heads_normed(self, layer: Layer, heads: Tensor) -> Tensor:
        """`heads`: queries, then keys, [rows, heads + kv_heads, head_dim]."""
        if layer.head_norms is None:
            return heads
        shape, epsilon, count = (self.config.head_dim,), self.config.rms_epsilon, self.config.heads
        queries = fn.rms_norm(heads[:, :count], shape, layer.head_norms[0], epsilon)
        keys = fn.rms_norm(heads[:, count:], shape, layer.head_norms[1], epsilon)
        return torch.cat((queries, keys), dim=1)

    def _attend(self, layer: Layer, qkv: Tensor, rotary: tuple[Tensor, Tensor], batch: Batch, kv: Tensor) -> Tensor:
        """`qkv`: [rows, (heads + 2 kv_heads) * head_dim]; `kv`: [pages, 2, page_tokens, kv_heads, row]."""
        heads, kv_heads, head_dim = self.config.heads, self.config.kv_heads, self.config.head_dim
        rows = qkv.shape[0]
        split = qkv.view(rows, heads + 2 * kv_heads, head_dim)
        turned = rotate(self._heads_normed(layer, split[:, : heads + kv_heads]), *rotary)
        kv[batch.page, 0, batch.slot] = self.kv_format.packed(turned[:, heads:])
        kv[batch.page, 1, batch.slot] = self.kv_format.packed(split[:, heads + kv_heads :])
        parts: list[Tensor] = []
        start = 0
        for group in batch.groups:
            end = start + group.sequences * group.rows
            mask = group.seen_by(windowed=layer.windowed)
            parts.append(attend_group(turned[start:end, :heads], group, kv, mask, self.kv_format))
            start = end
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).view(rows, heads * head_dim)


def _layer(
    config: ModelConfig, tensors: dict[str, Tensor], index: int, native: NativeKernels | None, *, int8: bool
) -> Layer:
    at = f"model.layers.{index}."

    def weights(*names: str) -> Tensor:
        return torch.cat([tensors.pop(f"{at}{name}.weight") for name in names])

    def joined(*names: str) -> Linear:
        biases = [tensors.pop(f"{at}{name}.bias") for name in names if f"{at}{name}.bias" in tensors]
        return make_linear(weights(*names), torch.cat(biases) if biases else None, native, int8=int8)

    def head_norms() -> tuple[Tensor, Tensor]:
        return _norm(tensors, f"{at}self_attn.q_norm", native), _norm(tensors, f"{at}self_attn.k_norm", native)

    return Layer(
        attention_norm=_norm(tensors, f"{at}input_layernorm", native),
        qkv=joined("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        output=joined("self_attn.o_proj"),
        mlp_norm=_norm(tensors, f"{at}post_attention_layernorm", native),
        gated=make_gated(weights("mlp.gate_proj", "mlp.up_proj"), native, int8=int8),
        down=joined("mlp.down_proj"),
        head_norms=head_norms() if config.traits.qk_norm else None,
        windowed=index in config.traits.windowed,
    )


def _norm(tensors: dict[str, Tensor], name: str, native: NativeKernels | None) -> Tensor:
    weight = tensors.pop(f"{name}.weight")
    return weight if native is None else weight.float()


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
        folded = queries.view(group.sequences, kv_heads, heads // kv_heads, head_dim)
        return fn.scaled_dot_product_attention(folded, keys, values, attn_mask=mask).reshape(-1, heads, head_dim)
    turned = queries.view(group.sequences, group.rows, heads, head_dim).transpose(1, 2)
    out = fn.scaled_dot_product_attention(turned, keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=True)
    return out.transpose(1, 2).reshape(-1, heads, head_dim)


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding, the halves of a head paired (Hugging Face's layout). heads: [rows, heads, head_dim]."""
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat((-second, first), dim=-1) * sin
