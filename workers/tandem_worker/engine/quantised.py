"""Weights in 8 bits, a scale a row: half of what bf16 reads. Activations and KV stay as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

LEVELS = 127


class Int8Linear:
    """A product by int8 weights, a scale a row; torch's own kernel, in bf16."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        scales = (weight.float().abs().amax(dim=1) / LEVELS).clamp(min=torch.finfo(torch.float32).tiny)
        self._weight = torch.round(weight.float() / scales.unsqueeze(1)).to(torch.int8)
        self._scales = scales.to(torch.bfloat16)
        self._bias = bias

    def __call__(self, x: Tensor, /) -> Tensor:
        """From x [rows, in] to [rows, out], in x's dtype."""
        out = torch._weight_int8pack_mm(x.to(torch.bfloat16), self._weight, self._scales)  # noqa: SLF001 (no public name)
        out = out.to(x.dtype)
        return out if self._bias is None else out + self._bias
