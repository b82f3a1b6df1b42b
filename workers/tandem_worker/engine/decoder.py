"""The decoder that all families share, over paged KV: RMSNorm, rotary embedding, grouped-query attention, SwiGLU.

One forward pass takes a ragged batch: all rows share the linear layers; attention runs group by group, each group
being sequences of about the same length with the same number of new tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as fn

from tandem_worker.engine.attention import choose_attention
from tandem_worker.engine.kv_format import kv_format
from tandem_worker.engine.linear import Linear, make_gated, make_linear
from tandem_worker.engine.rope import rotary_tables

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from tandem_worker.engine.attention import Attention
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

    def on(self, device: torch.device) -> Group:
        """The same on this device."""
        mask, window_mask = (one if one is None else one.to(device) for one in (self.mask, self.window_mask))
        return Group(self.sequences, self.rows, self.pages.to(device), mask, window_mask)


@dataclass(frozen=True, slots=True)
class Batch:
    """tokens, positions, page, slot: [rows] int64; `wanted`: rows whose logits are asked for."""

    tokens: Tensor
    positions: Tensor
    page: Tensor
    slot: Tensor
    groups: tuple[Group, ...]
    wanted: Tensor

    def on(self, device: torch.device) -> Batch:
        """The same on this device."""
        if device.type == self.tokens.device.type:
            return self
        groups = tuple(group.on(device) for group in self.groups)
        tokens, positions, page, slot, wanted = (
            one.to(device) for one in (self.tokens, self.positions, self.page, self.slot, self.wanted)
        )
        return Batch(tokens, positions, page, slot, groups, wanted)


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
    """A model on its device. KV store: [pages, layers, 2, page_tokens, kv_heads, row], see kv_format.py."""

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
        self.kv_format = kv_format(kv, dtype, config.head_dim)
        self.device = tensors["model.embed_tokens.weight"].device
        self.attention = choose_attention(config, self.kv_format, dtype, self.device)
        self.mask_dtype = self.attention.mask_dtype if native is None else None  # native attention goes by positions
        self.reduce: Callable[[Tensor], Tensor] | None = None  # the sum over ranks, see parallel.py
        self._native = native
        self._embedding = tensors.pop("model.embed_tokens.weight")
        self._layers = tuple(_layer(config, tensors, index, native, int8=int8) for index in range(config.layers))
        self._stack = None if native is None else native.stack(self._layers, kv)
        self._norm = _norm(tensors, "model.norm", native)
        self._head = make_linear(self._embedding if config.tied else tensors.pop("lm_head.weight"), None, native)
        if native is None:
            rope = (config.rope_theta, config.head_dim, config.rope_scaling)
            self._cos, self._sin = (one.to(self.device) for one in rotary_tables(*rope, context, dtype))

    def forward(self, batch: Batch, kv: Tensor) -> Tensor:
        """Write the batch's KV into `kv` and return the logits of the wanted rows, [wanted, vocab].

        `batch`: the host's; `kv` and the result: the device's.
        """
        self.attention.plan(batch, kv.shape[3])
        return self.compute(batch.on(self.device), kv, self.attention)

    def compute(self, batch: Batch, kv: Tensor, attention: Attention) -> Tensor:
        """The same of a batch on the device, for which `attention` has been planned: nothing here asks the host."""
        hidden = self._embedding[batch.tokens]
        if self._native is not None:
            hidden = hidden.float()
        if self._stack is not None and self.reduce is None:
            hidden = self._stack.run(hidden, batch, kv)
        else:
            hidden = self._through_layers(hidden, batch, kv, attention)
        return self._head(self._normed(hidden[batch.wanted], self._norm))

    def _through_layers(self, hidden: Tensor, batch: Batch, kv: Tensor, attention: Attention) -> Tensor:
        reduce = self.reduce or (lambda part: part)
        attend = self._attending(batch, kv, attention)
        for index, layer in enumerate(self._layers):
            qkv = layer.qkv(self._normed(hidden, layer.attention_norm))
            hidden = hidden + reduce(layer.output(attend(layer, qkv, index)))
            hidden = hidden + reduce(layer.down(layer.gated(self._normed(hidden, layer.mlp_norm))))
        return hidden

    def _normed(self, hidden: Tensor, weight: Tensor) -> Tensor:
        if self._native is not None:
            return self._native.norm(hidden, weight)
        return fn.rms_norm(hidden, (self.config.hidden_size,), weight, self.config.rms_epsilon)

    def _attending(self, batch: Batch, kv: Tensor, attention: Attention) -> Callable[[Layer, Tensor, int], Tensor]:
        """From a layer, its projections and its number to what its heads found; writes the layer's KV."""
        if self._native is not None:
            return self._native.attention(batch, kv, self.kv_format.name)
        rotary = (self._cos[batch.positions].unsqueeze(1), self._sin[batch.positions].unsqueeze(1))

        def attend(layer: Layer, qkv: Tensor, index: int) -> Tensor:
            queries = self._enter(layer, qkv, rotary, batch, kv[:, index])
            return attention.run(queries, kv[:, index], batch, windowed=layer.windowed).view(len(qkv), -1)

        return attend

    def _heads_normed(self, layer: Layer, heads: Tensor) -> Tensor:
        """`heads`: queries, then keys, [rows, heads + kv_heads, head_dim]."""
        if layer.head_norms is None:
            return heads
        shape, epsilon, count = (self.config.head_dim,), self.config.rms_epsilon, self.config.heads
        queries = fn.rms_norm(heads[:, :count], shape, layer.head_norms[0], epsilon)
        keys = fn.rms_norm(heads[:, count:], shape, layer.head_norms[1], epsilon)
        return torch.cat((queries, keys), dim=1)

    def _enter(self, layer: Layer, qkv: Tensor, rotary: tuple[Tensor, Tensor], batch: Batch, kv: Tensor) -> Tensor:
        """Keys and values go into their pages; the turned queries, [rows, heads, head_dim].

        `qkv`: [rows, (heads + 2 kv_heads) * head_dim]; `kv`: [pages, 2, page_tokens, kv_heads, row].
        """
        heads, kv_heads, head_dim = self.config.heads, self.config.kv_heads, self.config.head_dim
        split = qkv.view(len(qkv), heads + 2 * kv_heads, head_dim)
        turned = rotate(self._heads_normed(layer, split[:, : heads + kv_heads]), *rotary)
        kv[batch.page, 0, batch.slot] = self.kv_format.packed(turned[:, heads:])
        kv[batch.page, 1, batch.slot] = self.kv_format.packed(split[:, heads + kv_heads :])
        return turned[:, :heads]


def _layer(
    config: ModelConfig, tensors: dict[str, Tensor], index: int, native: NativeKernels | None, *, int8: bool
) -> Layer:
    at = f"model.layers.{index}."

    def weights(*names: str) -> Tensor:
        found = [tensors.pop(f"{at}{name}.weight") for name in names]
        return found[0] if len(found) == 1 else torch.cat(found)  # of one, cat makes a copy too

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


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding, the halves of a head paired (Hugging Face's layout). heads: [rows, heads, head_dim]."""
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat((-second, first), dim=-1) * sin
