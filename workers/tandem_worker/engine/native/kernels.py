"""The decoder's parts over the compiled kernels: bf16 weights, pages of bf16 or 8 bits, everything between in fp32."""

from __future__ import annotations

import ctypes
import logging
from typing import TYPE_CHECKING, Any, Final

import torch

from tandem_worker.engine.kv_format import CODES
from tandem_worker.engine.native.library import (
    AttentionCall,
    GroupCall,
    LayerCall,
    Library,
    PassCall,
    find_library,
)
from tandem_worker.engine.rope import rotary_tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from tandem_worker.engine.config import ModelConfig
    from tandem_worker.engine.decoder import Batch, Layer

LOG = logging.getLogger(__name__)
HEAD_DIMS: Final = (16, 32, 64, 80, 96, 128)
STORE, GATE = 0, 2


class NativeLinear:
    """A bf16 weight in the kernels' layout; the plain one can be forgotten."""

    def __init__(self, library: Library, weight: Tensor, bias: Tensor | None = None, *, gated: bool = False) -> None:
        """`gated`: the upper half of `weight` are gates, the result is SiLU(gates) times the lower half's."""
        rows, self._inputs = weight.shape
        self.outputs = rows // 2 if gated else rows
        self._ending = GATE if gated else STORE
        self._library = library
        self.bias = None if bias is None else bias.float()
        panels = -(-self.outputs // (library.lanes if gated else 2 * library.lanes))
        self.weight = torch.empty((panels, self._inputs, library.lanes), dtype=torch.int32)
        library.pack(weight.contiguous().data_ptr(), rows, self._inputs, gated, self.weight.data_ptr())

    def __call__(self, x: Tensor, /) -> Tensor:
        """From x [rows, in] to [rows, out], both fp32."""
        x = x.contiguous()
        out = torch.empty((x.shape[0], self.outputs))
        self._library.product(
            x.data_ptr(),
            x.shape[0],
            self._inputs,
            self.weight.data_ptr(),
            None if self.bias is None else self.bias.data_ptr(),
            out.data_ptr(),
            self.outputs,
            self._ending,
            torch.get_num_threads(),
        )
        return out


class NativeKernels:
    """What one decoder needs of the kernels. Hidden states are fp32."""

    def __init__(self, library: Library, config: ModelConfig, context: int) -> None:
        self.library = library
        self._config = config
        self._tables = rotary_tables(config.rope_theta, config.head_dim, config.rope_scaling, context, torch.float32)

    def norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """RMSNorm of [rows, size]; `weight` fp32."""
        hidden, out = hidden.contiguous(), torch.empty(hidden.shape)
        rows, size = hidden.shape
        epsilon = self._config.rms_epsilon
        self.library.norm(hidden.data_ptr(), weight.data_ptr(), rows, size, epsilon, out.data_ptr())
        return out

    def stack(self, layers: Sequence[Layer], kind: str) -> NativeStack | None:
        """All layers as one call; None where one of them is no compiled product."""
        linears = [one for layer in layers for one in (layer.qkv, layer.output, layer.gated, layer.down)]
        if not all(isinstance(one, NativeLinear) for one in linears):
            return None
        return NativeStack(self.library, self._config, self._tables, layers, kind)

    def attention(self, batch: Batch, kv: Tensor, kind: str = "") -> NativeAttention:
        """Attention of one forward pass; `kind`: how rows lie in pages, see kv_format.py."""
        return NativeAttention(self.library, self._config, self._tables, batch, kv, kind)


def attention_call(
    config: ModelConfig, tables: tuple[Tensor, Tensor], batch: Batch, kv: Tensor, kind: str
) -> AttentionCall:
    """The batch's facts; a layer's own are yet to come. All tensors must outlive it."""
    return AttentionCall(
        cosines=tables[0].data_ptr(),
        sines=tables[1].data_ptr(),
        positions=batch.positions.data_ptr(),
        page=batch.page.data_ptr(),
        slot=batch.slot.data_ptr(),
        rows=len(batch.tokens),
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        page_tokens=kv.shape[3],
        page_stride=kv.stride(0) * kv.itemsize,
        epsilon=config.rms_epsilon,
        threads=torch.get_num_threads(),
        kind=CODES[kind],
    )


class NativeAttention:
    """One forward pass' attention: the batch's facts are handed over once, the layers' one by one."""

    def __init__(
        self,
        library: Library,
        config: ModelConfig,
        tables: tuple[Tensor, Tensor],
        batch: Batch,
        kv: Tensor,
        kind: str,
    ) -> None:
        self._library, self._config, self._batch, self._kv = library, config, batch, kv
        self._tables = tables  # the call holds addresses alone
        self._layer_bytes = kv.stride(1) * kv.itemsize
        self._call = attention_call(config, tables, batch, kv, kind)

    def __call__(self, layer: Layer, qkv: Tensor, index: int) -> Tensor:
        """Write the layer's KV and attend. `qkv` [rows, all heads], which is changed; the result [rows, heads]."""
        config, call = self._config, self._call
        out = torch.empty((call.rows, config.heads * config.head_dim))
        call.qkv, call.out = qkv.data_ptr(), out.data_ptr()
        call.kv = self._kv.data_ptr() + index * self._layer_bytes
        if layer.head_norms is not None:
            call.query_norm, call.key_norm = (one.data_ptr() for one in layer.head_norms)
        call.window = (config.traits.window or 0) if layer.windowed else 0
        where = ctypes.byref(call)
        self._library.enter(where)
        first = 0
        for group in self._batch.groups:
            width = len(group.pages) // group.sequences
            self._library.attend(where, group.pages.data_ptr(), width, group.sequences, group.rows, first)
            first += group.sequences * group.rows
        return out


class NativeStack:
    """A decoder's layers as one call a pass: nothing of it holds the interpreter, and no layer waits for it."""

    def __init__(
        self, library: Library, config: ModelConfig, tables: tuple[Tensor, Tensor], layers: Sequence[Layer], kind: str
    ) -> None:
        self._library, self._config, self._tables, self._kind = library, config, tables, kind
        self._held = layers  # the calls hold addresses alone
        self._layers = (LayerCall * len(layers))(*(self._layer(layer) for layer in layers))

    def _layer(self, layer: Layer) -> LayerCall:
        linears: dict[str, Any] = {name: getattr(layer, name) for name in ("qkv", "output", "gated", "down")}
        call = LayerCall(
            attention_norm=layer.attention_norm.data_ptr(),
            mlp_norm=layer.mlp_norm.data_ptr(),
            window=(self._config.traits.window or 0) if layer.windowed else 0,
            **{name: one.weight.data_ptr() for name, one in linears.items()},
        )
        for name in ("qkv", "output"):
            if linears[name].bias is not None:
                setattr(call, f"{name}_bias", linears[name].bias.data_ptr())
        if layer.head_norms is not None:
            call.query_norm, call.key_norm = (one.data_ptr() for one in layer.head_norms)
        return call

    def run(self, hidden: Tensor, batch: Batch, kv: Tensor) -> Tensor:
        """Through all layers; writes their KV. `hidden`: [rows, size] fp32, contiguous; changed, and returned."""
        config = self._config
        rows, size = hidden.shape
        heads = config.heads * config.head_dim
        inner_size = self._held[0].gated.outputs  # type: ignore[attr-defined]
        widths = (heads + 2 * config.kv_heads * config.head_dim, heads, size, inner_size)
        scratch = [torch.empty(rows, width) for width in widths]
        call = attention_call(config, self._tables, batch, kv, self._kind)
        call.qkv, call.out, call.kv = scratch[0].data_ptr(), scratch[1].data_ptr(), kv.data_ptr()
        groups = group_calls(batch)
        self._library.run_pass(
            PassCall(
                call=call,
                layers=self._layers,
                groups=groups,
                hidden=hidden.data_ptr(),
                normed=scratch[2].data_ptr(),
                inner=scratch[3].data_ptr(),
                layer_count=len(self._layers),
                group_count=len(groups),
                size=size,
                inner_size=inner_size,
                layer_bytes=kv.stride(1) * kv.itemsize,
            )
        )
        return hidden


def group_calls(batch: Batch) -> ctypes.Array[GroupCall]:
    """The batch's groups; they hold addresses of its pages."""
    calls, first = [], 0
    for group in batch.groups:
        width = len(group.pages) // group.sequences
        calls.append(GroupCall(group.pages.data_ptr(), width, group.sequences, group.rows, first))
        first += group.sequences * group.rows
    return (GroupCall * len(calls))(*calls)


def native_kernels(config: ModelConfig, dtype: torch.dtype, context: int) -> NativeKernels | None:
    """The kernels where they can serve this model on this machine; the log says what is used, and why."""
    if dtype != torch.bfloat16:
        return None  # fp32 is the reference's arithmetic, and torch's
    found = find_library()
    if isinstance(found, Library) and config.head_dim not in HEAD_DIMS:
        found = f"they have no heads of {config.head_dim}"
    if isinstance(found, str):
        LOG.info("the model runs on torch alone, without native kernels: %s", found)
        return None
    LOG.info("the model runs on native kernels (%d lanes, fp32 sums)", found.lanes)
    return NativeKernels(found, config, context)
