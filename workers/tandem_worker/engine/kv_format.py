"""How one head's key or value of one token lies in a page: as numbers of the model's type, or as bytes and their scale.

In 8 bits a row is `head_dim` bytes and one fp32 scale: the row's largest magnitude over that of the type. A scale a row
and not a page: a page fills token by token, and a token's KV must not depend on who comes after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from tandem_worker.engine.request import ModelLoadError

if TYPE_CHECKING:
    from torch import Tensor

SCALE_BYTES: Final = 4
# by name: the type of a byte, and its largest number
BYTES: Final = {"int8": (torch.int8, 127.0), "fp8": (torch.float8_e4m3fn, 448.0)}
CODES: Final = {"": 0, "int8": 1, "fp8": 2}  # as in native/rows.h


@dataclass(frozen=True, slots=True)
class KvFormat:
    """`name`: "" for numbers of `dtype`, or one of BYTES; `dtype` and `row`: of a page's elements, and how many."""

    name: str
    dtype: torch.dtype
    head_dim: int

    @property
    def row(self) -> int:
        """Elements of one head's row."""
        return self.head_dim + SCALE_BYTES if self.name else self.head_dim

    def packed(self, heads: Tensor) -> Tensor:
        """[..., head_dim] → [..., row], as it lies in a page."""
        if not self.name:
            return heads.to(self.dtype)
        kind, most = BYTES[self.name]
        wide = heads.float()
        scale = (wide.abs().amax(-1, keepdim=True) / most).clamp(min=torch.finfo(torch.float32).tiny)
        parts = wide / scale
        whole = (torch.round(parts) if kind is torch.int8 else parts).to(kind)
        return torch.cat((whole.view(torch.uint8), scale.contiguous().view(torch.uint8)), dim=-1)

    def unpacked(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """[..., row] → [..., head_dim] in `dtype`."""
        if not self.name:
            return rows
        kind, _ = BYTES[self.name]
        scale = rows[..., self.head_dim :].contiguous().view(torch.float32)
        return (rows[..., : self.head_dim].contiguous().view(kind).float() * scale).to(dtype)


def kv_format(name: str, dtype: torch.dtype, head_dim: int) -> KvFormat:
    """The format by its name. Raises ModelLoadError."""
    if name not in CODES:
        raise ModelLoadError(f"--kv {name} is not known; give {' or '.join(BYTES)}, or nothing")
    return KvFormat(name, torch.uint8 if name else dtype, head_dim)
