"""The hardware catalogue: the commonly published figures of each accelerator, before any measurement corrects them.

Peak dense FLOP/s (figures "with sparsity" halved), memory and power as published for H100, H200, A100, HGX B200, L40S
and L4. Not held against a data sheet: H100 NVL, L4 compute, the PCIe cards' bandwidth, NIC shares, prices, the `cpu`
row. `float32` is the plain FP32 rate, not TF32. Network bandwidth is one accelerator's share in the usual server: one
400 Gb/s port each in HGX H100, H200 and B200, 200 Gb/s in HGX A100, less in PCIe servers. Prices are rough on-demand
figures, not quotes; only their relation to each other moves a decision. All of it can be changed in the catalogue
ConfigMap.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

from pydantic import TypeAdapter, ValidationError

GIB: Final = 2**30
GIGABIT: Final = 10**9 / 8  # bytes/s
PRODUCT_LABEL: Final = "nvidia.com/gpu.product"  # set by GPU feature discovery
GPU: Final = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One entry. `flops`: peak dense FLOP/s by dtype; `link`: its share of the network. Bytes, bytes/s, watts, USD."""

    name: str
    flops: Mapping[str, float]
    memory_bytes: float
    bandwidth: float
    link: float
    watts: float
    price_per_hour: float
    resource: str = GPU  # extended resource that a pod asks for; empty: none
    products: tuple[str, ...] = field(default=())  # accepted values of PRODUCT_LABEL; empty: any node

    def peak(self, dtype: str) -> float:
        """Peak dense FLOP/s at a dtype of the API. Raises UnknownDTypeError where the entry has none."""
        if dtype not in self.flops:
            raise UnknownDTypeError(
                f"accelerator {self.name} has no figure for dtype {dtype}; known: {', '.join(self.flops)}"
            )
        return self.flops[dtype]


class UnknownDTypeError(LookupError):
    """The catalogue has no peak rate for this dtype."""


class UnknownAcceleratorError(LookupError):
    """The catalogue has no such entry; reported as Stalled/UnknownAccelerator."""


class BadCatalogueError(ValueError):
    """An entry of the catalogue ConfigMap cannot be read."""


def _tera(*, half: float, single: float, fp8: float | None = None) -> dict[str, float]:
    rates = {"bfloat16": half * 1e12, "float16": half * 1e12, "float32": single * 1e12}
    return rates if fp8 is None else {**rates, "float8_e4m3": fp8 * 1e12}


_ENTRIES: Final = (
    # H100 SXM, as published: 1,979 TFLOPS BF16 and 3,958 FP8 with sparsity; 67 FP32; 80 GB HBM3, 3.35 TB/s; 700 W.
    Accelerator(
        "h100-sxm", _tera(half=989.5, single=67, fp8=1979), 80 * GIB, 3.35e12, 400 * GIGABIT, 700, 3.0,
        products=("NVIDIA-H100-80GB-HBM3",),
    ),
    # H100 PCIe, as published: 1,513 BF16 and 3,026 FP8 with sparsity; 51 FP32; 80 GB HBM2e, 2.0 TB/s; 350 W.
    Accelerator(
        "h100-pcie", _tera(half=756.5, single=51, fp8=1513), 80 * GIB, 2.0e12, 200 * GIGABIT, 350, 2.4,
        products=("NVIDIA-H100-PCIe",),
    ),
    # H100, as published, NVL column, one GPU: 1,671 BF16 and 3,341 FP8 sparse; 60 FP32; 94 GB HBM3, 3.9 TB/s; 400 W.
    Accelerator(
        "h100-nvl", _tera(half=835.5, single=60, fp8=1670.5), 94 * GIB, 3.9e12, 200 * GIGABIT, 400, 2.8,
        products=("NVIDIA-H100-NVL",),
    ),
    # H200, as published, SXM column: compute as H100 SXM; 141 GB HBM3e, 4.8 TB/s; 700 W.
    Accelerator(
        "h200-sxm", _tera(half=989.5, single=67, fp8=1979), 141e9, 4.8e12, 400 * GIGABIT, 700, 3.8,
        products=("NVIDIA-H200",),
    ),
    # A100, as published, 80GB SXM column: 312 BF16 dense; 19.5 FP32; 80 GB HBM2e, 2,039 GB/s; 400 W. No FP8.
    Accelerator(
        "a100-sxm-80gb", _tera(half=312, single=19.5), 80 * GIB, 2.039e12, 200 * GIGABIT, 400, 1.8,
        products=("NVIDIA-A100-SXM4-80GB",),
    ),
    # HGX B200, as published, one of eight: 4.5 PFLOPS BF16 and 9 FP8 sparse; 75 FP32; 180 GB HBM3e, 7.7 TB/s; 1,000 W.
    Accelerator(
        "b200", _tera(half=2250, single=75, fp8=4500), 180e9, 7.7e12, 400 * GIGABIT, 1000, 5.5,
        products=("NVIDIA-B200",),
    ),
    # L40S, as published: 362 BF16 and 733 FP8 dense; 91.6 FP32; 48 GB GDDR6, 864 GB/s; 350 W.
    Accelerator(
        "l40s", _tera(half=362, single=91.6, fp8=733), 48e9, 864e9, 100 * GIGABIT, 350, 1.2,
        products=("NVIDIA-L40S",),
    ),
    # L4, as published: 242 BF16 and 485 FP8 with sparsity; 30.3 FP32; 24 GB GDDR6, 300 GB/s; 72 W.
    Accelerator(
        "l4", _tera(half=121, single=30.3, fp8=242.5), 24e9, 300e9, 25 * GIGABIT, 72, 0.7,
        products=("NVIDIA-L4",),
    ),
    # One core of a server with AVX2: 8 FMA lanes × 2 units × 2 × ~3 GHz; a start that calibration corrects.
    Accelerator(
        "cpu", {"bfloat16": 5e10, "float16": 5e10, "float32": 1e11}, 4 * GIB, 1e10, 10 * GIGABIT, 15, 0.05, resource="",
    ),
)  # fmt: skip

CATALOGUE: Final[Mapping[str, Accelerator]] = {entry.name: entry for entry in _ENTRIES}


def find(name: str, catalogue: Mapping[str, Accelerator] = CATALOGUE) -> Accelerator:
    """The entry of that name. Raises UnknownAcceleratorError, naming those that there are."""
    if name not in catalogue:
        raise UnknownAcceleratorError(f"unknown accelerator {name!r}; the catalogue has {', '.join(sorted(catalogue))}")
    return catalogue[name]


def to_data(catalogue: Mapping[str, Accelerator] = CATALOGUE) -> dict[str, str]:
    """The catalogue as a ConfigMap's data: a key for each entry, its figures as JSON."""
    return {name: json.dumps(_without_name(entry), indent=1) + "\n" for name, entry in catalogue.items()}


def _without_name(entry: Accelerator) -> dict[str, object]:
    return {key: value for key, value in asdict(entry).items() if key != "name"}


def from_data(data: Mapping[str, str]) -> dict[str, Accelerator]:
    """The catalogue in a ConfigMap's data. Raises BadCatalogueError with the entry's name and what is wrong."""
    return {name: _entry(name, text) for name, text in data.items()}


def _entry(name: str, text: str) -> Accelerator:
    try:
        return _ADAPTER.validate_python({**json.loads(text), "name": name})
    except (ValidationError, ValueError, TypeError) as error:
        raise BadCatalogueError(f"catalogue entry {name!r}: {error}") from error


_ADAPTER: Final = TypeAdapter(Accelerator)
