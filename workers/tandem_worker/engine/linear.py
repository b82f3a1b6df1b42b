"""A matrix product by a fixed weight, in the form that is fastest on this CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
import torch.nn.functional as fn

from tandem_worker.engine.native.kernels import NativeLinear
from tandem_worker.engine.quantised import Int8Linear

if TYPE_CHECKING:
    from torch import Tensor

    from tandem_worker.engine.native.kernels import NativeKernels

# oneDNN lays a weight out for one row count. Measured at 1 to 256 rows (bf16 with AMX, fp32 with AVX-512): the layout
# for 8 is within 10 % of the best nearly everywhere; without packing a batch of 8 takes 1.4 to 2.8 times as long.
PACKED_FOR_ROWS = 8


class Linear(Protocol):
    """From x [rows, in] to [rows, out]."""

    def __call__(self, x: Tensor, /) -> Tensor:
        """From x [rows, in] to [rows, out]."""


class PlainLinear:
    """`torch`'s own product."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor, /) -> Tensor:
        """From x [rows, in] to [rows, out]."""
        return fn.linear(x, self._weight, self._bias)


class PackedLinear:
    """oneDNN's product with the weight laid out once; the plain weight can be forgotten."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._bias = bias
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR_ROWS)  # noqa: SLF001 (no public name)
        self._run = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001 (no public name)

    def __call__(self, x: Tensor, /) -> Tensor:
        """From x [rows, in] to [rows, out]."""
        out: Tensor = self._run(x, self._weight, self._bias, "none", [], "")
        return out


def can_pack(dtype: torch.dtype) -> bool:
    """Does this build of torch, on this CPU, have the packed product of this dtype?"""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):  # type: ignore[no-untyped-call]
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001 (no public name)
    return dtype == torch.float32


class Gated:
    """SiLU of the gates times their values, both by one weight: the gates' rows, then the values'."""

    def __init__(self, both: Linear) -> None:
        self._both = both

    def __call__(self, x: Tensor, /) -> Tensor:
        """From x [rows, in] to [rows, out / 2]."""
        gate, value = self._both(x).chunk(2, dim=-1)
        return fn.silu(gate) * value


def make_linear(
    weight: Tensor, bias: Tensor | None = None, native: NativeKernels | None = None, *, int8: bool = False
) -> Linear:
    """The fastest form for a weight [out, in] and a bias [out]; `int8`: the one that takes least memory."""
    if int8:
        return Int8Linear(weight, bias)
    if native is not None:
        return NativeLinear(native.library, weight, bias)
    packed = weight.device.type == "cpu" and can_pack(weight.dtype)
    return PackedLinear(weight, bias) if packed else PlainLinear(weight, bias)


def make_gated(weight: Tensor, native: NativeKernels | None = None, *, int8: bool = False) -> Linear:
    """The same of a gated product: see Gated."""
    if native is not None and not int8:
        return NativeLinear(native.library, weight, gated=True)
    return Gated(make_linear(weight, int8=int8))
