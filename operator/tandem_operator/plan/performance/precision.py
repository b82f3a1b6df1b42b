"""Number formats: bytes of a stored element, and the catalogue's rate that a matrix product runs at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

# Bytes of one stored element with its scales. NVFP4: 4 bits and an FP8 scale a block of 16 (4.5 bits); MXFP4: 4 bits
# and an 8-bit scale a block of 32 (OCP Microscaling Formats 1.0, section 5); int4: 4 bits and a 16-bit scale a group
# of 32 (4.5 bits). Scales of FP8 and int8 are a channel's or a 128x128 block's: nothing that counts.
BYTES: Final[Mapping[str, float]] = {
    "float32": 4.0,
    "bfloat16": 2.0,
    "float8_e4m3": 1.0,
    "int8": 1.0,
    "float4_e2m1": 4.5 / 8,
    "mxfp4": 4.25 / 8,
    "int4": 4.5 / 8,
}
# The rate that a weight format's products run at, best first: 4-bit integers are widened before the product.
_RATES: Final[Mapping[str, tuple[str, ...]]] = {
    "float8_e4m3": ("float8_e4m3", "bfloat16"),
    "int8": ("int8", "bfloat16"),
    "float4_e2m1": ("float4_e2m1", "bfloat16"),
    "mxfp4": ("float8_e4m3", "bfloat16"),
    "int4": ("bfloat16",),
    "float32": ("float32",),
}
# What benchmarks and checkpoints call them (the first that a name begins with).
_NAMES: Final = (
    ("nvfp4", "float4_e2m1"),
    ("fp4", "float4_e2m1"),
    ("mxfp4", "mxfp4"),
    ("w4a16_mxfp4", "mxfp4"),
    ("w4a8_mxfp4", "mxfp4"),
    ("fp8", "float8_e4m3"),
    ("w8a8_fp8", "float8_e4m3"),
    ("float8", "float8_e4m3"),
    ("int4", "int4"),
    ("w4a16", "int4"),
    ("awq", "int4"),
    ("gptq", "int4"),
    ("int8", "int8"),
    ("w8a", "int8"),
    ("sq", "int8"),
    ("bf16", "bfloat16"),
    ("bfloat16", "bfloat16"),
    ("fp16", "bfloat16"),
    ("float16", "bfloat16"),
    ("half", "bfloat16"),
)


class UnknownFormatError(ValueError):
    """A number format that the performance model does not know."""


@dataclass(frozen=True, slots=True)
class Precision:
    """Formats of the linear layers, of the routed experts, and of the KV cache; keys of `BYTES`."""

    linear: str = "bfloat16"
    experts: str = "bfloat16"
    kv: str = "bfloat16"


def format_of(name: str) -> str:
    """`nvfp4`, `fp8_block`, `int4_wo`, ... -> a key of BYTES; empty: bfloat16. Raises UnknownFormatError."""
    word = name.strip().lower()
    if not word:
        return "bfloat16"
    for prefix, known in _NAMES:
        if word.startswith(prefix):
            return known
    raise UnknownFormatError(f"number format {name!r} is not known; known: {', '.join(BYTES)}")


def rate_of(weights: str, flops: Mapping[str, float]) -> str:
    """The catalogue's dtype that products with such weights run at: the narrowest that the device has a rate for."""
    return next((rate for rate in _RATES.get(weights, ()) if rate in flops), "bfloat16")
