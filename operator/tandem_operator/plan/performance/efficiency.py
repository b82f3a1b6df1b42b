"""Shares of a data sheet's peaks that kernels reach, and the floors under them: one set per GPU generation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares of peak (0..1), and seconds. `mfu`: matrix products by the rate's dtype; `mbu`: by the stored weights'."""

    mfu: Mapping[str, float]
    attention_mfu: float  # prefill attention, of the bf16 rate
    mbu: Mapping[str, float]
    kv_mbu: float  # KV cache in decode attention, activations
    kernel_s: float  # one small kernel in a CUDA graph: launch gap and the least that it takes
    reduce_s: float  # one small all-reduce inside the scale-up domain
    network_reduce_s: float = 30e-6  # the same over the network
    half_width: float = 640.0  # an expert's width on one GPU at which its products reach half of `mfu`
    expert_mbu: float = 0.95  # of `mbu` in them

    def compute(self, rate: str) -> float:
        """MFU of products at that rate."""
        return self.mfu.get(rate, self.mfu["bfloat16"])

    def reading(self, stored: str) -> float:
        """MBU of weights in that format."""
        return self.mbu.get(stored, self.mbu["bfloat16"])


# See docs/reference/planner/accuracy.md for each figure's source.
GENERATIONS: Final[Mapping[str, Efficiency]] = {
    "ampere": Efficiency({"bfloat16": 0.7, "int8": 0.6}, 0.6, {"bfloat16": 0.85}, 0.8, 5e-6, 12e-6),
    "ada": Efficiency({"bfloat16": 0.7, "float8_e4m3": 0.6, "int8": 0.6}, 0.6, {"bfloat16": 0.85}, 0.8, 5e-6, 20e-6),
    "hopper": Efficiency(
        {"bfloat16": 0.75, "float8_e4m3": 0.5, "int8": 0.5},
        0.45,
        {"bfloat16": 0.9, "float8_e4m3": 0.7},
        0.6,
        4e-6,
        10e-6,
    ),
    "blackwell": Efficiency(
        {"bfloat16": 0.75, "float8_e4m3": 0.5, "float4_e2m1": 0.45, "int8": 0.5},
        0.45,
        {"bfloat16": 0.9, "float4_e2m1": 0.85},
        0.5,
        3.5e-6,
        10e-6,
    ),
    "cdna3": Efficiency({"bfloat16": 0.5, "float8_e4m3": 0.45, "int8": 0.45}, 0.4, {"bfloat16": 0.8}, 0.7, 6e-6, 20e-6),
    "cpu": Efficiency({"bfloat16": 0.5}, 0.5, {"bfloat16": 0.8}, 0.8, 0.0, 0.0),
}
# For a device of no known generation.
TYPICAL: Final = GENERATIONS["ampere"]


def efficiency_of(generation: str) -> Efficiency:
    """The generation's shares; those of the oldest one for a generation that the table does not have."""
    return GENERATIONS.get(generation, TYPICAL)
