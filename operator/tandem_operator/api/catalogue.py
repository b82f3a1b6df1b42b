"""The hardware catalogue: the commonly published figures of each accelerator, before any measurement corrects them.

Peak dense FLOP/s (figures "with sparsity" halved), memory and power as published for H100, H200, A100, HGX B200, L40S
and L4. Not held against a data sheet: H100 NVL, H200 NVL, A100 of 40 GB or of PCIe, L4 compute, the PCIe cards'
bandwidth, NIC shares, prices, the `cpu` row. `float32` is the plain FP32 rate, not TF32. Network bandwidth is one
accelerator's share in the usual server: one 400 Gb/s port each in HGX H100, H200 and B200, 200 Gb/s in HGX A100, less
in PCIe servers. Prices are rough on-demand figures, not quotes; only their relation to each other moves a decision. All
of it can be changed in the catalogue ConfigMap.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Final

from pydantic import TypeAdapter, ValidationError

from tandem_operator.api.node_labels import NODE_LABELS, NodeLabels

log = logging.getLogger(__name__)
MAX_WORDS: Final = 200
GIB: Final = 2**30
GIGABIT: Final = 10**9 / 8  # bytes/s
GPU: Final = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One entry. `flops`: peak dense FLOP/s by dtype; `link`: its share of the network. Bytes, bytes/s, watts, USD.

    `scale_up`: bytes/s in one direction to the others in the same server or rack (NVLink, xGMI; else PCIe);
    `domain`: how many share it; 0 and 1: only the network. `generation`: whose kernels it runs.
    """

    name: str
    flops: Mapping[str, float]
    memory_bytes: float
    bandwidth: float
    link: float
    watts: float
    price_per_hour: float
    resource: str = GPU  # extended resource that a pod asks for; empty: none
    products: tuple[str, ...] = field(default=())  # accepted values of PRODUCT_LABEL
    labels: NodeLabels = field(default_factory=dict)  # further labels, any of which tells the product; none: any node
    scale_up: float = 0.0
    domain: int = 1
    generation: str = ""
    per_node: int = 8  # in one server; a worker of more spans nodes

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


def _tera(
    *, half: float, single: float, fp8: float | None = None, int8: float | None = None, fp4: float | None = None
) -> dict[str, float]:
    rates = {"bfloat16": half, "float16": half, "float32": single, "float8_e4m3": fp8, "int8": int8, "float4_e2m1": fp4}
    return {name: rate * 1e12 for name, rate in rates.items() if rate is not None}


_ENTRIES: Final = (
    # H100 SXM, as published: 1,979 TFLOPS BF16, 3,958 FP8 and INT8 with sparsity; 67 FP32; 80 GB HBM3, 3.35 TB/s;
    # 700 W; NVLink 900 GB/s in both directions together.
    Accelerator(
        "h100-sxm", _tera(half=989.5, single=67, fp8=1979, int8=1979), 80 * GIB, 3.35e12, 400 * GIGABIT, 700, 3.0,
        products=("NVIDIA-H100-80GB-HBM3", "NVIDIA-H100", "NVIDIA-H100-SXM5-80GB"), scale_up=450e9, domain=8,
        generation="hopper",
    ),
    # H100 PCIe, as published: 1,513 BF16, 3,026 FP8 and INT8 with sparsity; 51 FP32; 80 GB HBM2e, 2.0 TB/s; 350 W;
    # PCIe 5.0 x16 (an NVLink bridge joins two).
    Accelerator(
        "h100-pcie", _tera(half=756.5, single=51, fp8=1513, int8=1513), 80 * GIB, 2.0e12, 200 * GIGABIT, 350, 2.4,
        products=("NVIDIA-H100-PCIe", "NVIDIA-H100-PCIE-80GB"), scale_up=64e9, domain=8, generation="hopper",
    ),
    # H100, as published, NVL column, one GPU: 1,671 BF16, 3,341 FP8 and INT8 sparse; 60 FP32; 94 GB HBM3, 3.9 TB/s;
    # 400 W; PCIe 5.0 x16 (an NVLink bridge of 600 GB/s joins two).
    Accelerator(
        "h100-nvl", _tera(half=835.5, single=60, fp8=1670.5, int8=1670.5), 94 * GIB, 3.9e12, 200 * GIGABIT, 400, 2.8,
        products=("NVIDIA-H100-NVL",), scale_up=64e9, domain=8, generation="hopper",
    ),
    # H200, as published, SXM column: compute, NVLink as H100 SXM; 141 GB HBM3e (nvidia-smi: 140 GiB), 4.8 TB/s; 700 W.
    Accelerator(
        "h200-sxm", _tera(half=989.5, single=67, fp8=1979, int8=1979), 140 * GIB, 4.8e12, 400 * GIGABIT, 700, 3.8,
        products=("NVIDIA-H200", "NVIDIA-H200-141GB-HBM3e"), scale_up=450e9, domain=8, generation="hopper",
    ),
    # H200, as published, NVL column: compute as H100 NVL; memory as H200 SXM; 600 W; PCIe 5.0 x16 (an NVLink bridge of
    # 900 GB/s joins two or four).
    Accelerator(
        "h200-nvl", _tera(half=835.5, single=60, fp8=1670.5, int8=1670.5), 140 * GIB, 4.8e12, 200 * GIGABIT, 600, 3.4,
        products=("NVIDIA-H200-NVL",), scale_up=64e9, domain=8, generation="hopper",
    ),
    # A100, as published, 80GB SXM column: 312 BF16 and 624 INT8 dense; 19.5 FP32; 80 GB HBM2e, 2,039 GB/s; 400 W;
    # NVLink 600 GB/s. No FP8.
    Accelerator(
        "a100-sxm-80gb", _tera(half=312, single=19.5, int8=624), 80 * GIB, 2.039e12, 200 * GIGABIT, 400, 1.8,
        products=("NVIDIA-A100-SXM4-80GB", "A100-SXM4-80GB", "NVIDIA-A100-SXM-80GB"), scale_up=300e9, domain=8,
        generation="ampere",
    ),
    # A100, as published, 40GB SXM: all as above but 40 GB HBM2, 1,555 GB/s.
    Accelerator(
        "a100-sxm-40gb", _tera(half=312, single=19.5, int8=624), 40 * GIB, 1.555e12, 200 * GIGABIT, 400, 1.3,
        products=("NVIDIA-A100-SXM4-40GB", "A100-SXM4-40GB"), scale_up=300e9, domain=8, generation="ampere",
    ),
    # A100, as published, 80GB PCIe: compute as SXM; HBM2e, 1,935 GB/s; 300 W; PCIe 4.0 x16 (an NVLink bridge joins
    # two).
    Accelerator(
        "a100-pcie-80gb", _tera(half=312, single=19.5, int8=624), 80 * GIB, 1.935e12, 100 * GIGABIT, 300, 1.6,
        products=("NVIDIA-A100-80GB-PCIe",), scale_up=32e9, domain=8, generation="ampere",
    ),
    # A100, as published, 40GB PCIe: as that; HBM2, 1,555 GB/s; 250 W.
    Accelerator(
        "a100-pcie-40gb", _tera(half=312, single=19.5, int8=624), 40 * GIB, 1.555e12, 100 * GIGABIT, 250, 1.1,
        products=("NVIDIA-A100-PCIE-40GB", "A100-PCIE-40GB"), scale_up=32e9, domain=8, generation="ampere",
    ),
    # HGX B200, as published, one of eight: 4.5 PFLOPS BF16, 9 FP8 and INT8, 18 FP4 sparse; 75 FP32; 180 GB HBM3e
    # (nvidia-smi: 178 GiB), 7.7 TB/s; 1,000 W; NVLink 1.8 TB/s.
    Accelerator(
        "b200", _tera(half=2250, single=75, fp8=4500, int8=4500, fp4=9000), 178 * GIB, 7.7e12, 400 * GIGABIT, 1000, 5.5,
        products=("NVIDIA-B200",), scale_up=900e9, domain=8, generation="blackwell",
    ),
    # GB200 NVL72, as published, one of 72: 5 PFLOPS BF16, 10 FP8 and INT8, 20 FP4 sparse; 80 FP32; 186 GB HBM3e,
    # 8 TB/s; 1,200 W; NVLink 1.8 TB/s through the whole rack.
    Accelerator(
        "gb200", _tera(half=2500, single=80, fp8=5000, int8=5000, fp4=10000), 184 * GIB, 8e12, 400 * GIGABIT, 1200, 7.0,
        products=("NVIDIA-GB200",), scale_up=900e9, domain=72, generation="blackwell",
        per_node=4,
    ),
    # L40S, as published: 362 BF16, 733 FP8 and INT8 dense; 91.6 FP32; 48 GB GDDR6, 864 GB/s; 350 W; PCIe 4.0 x16.
    Accelerator(
        "l40s", _tera(half=362, single=91.6, fp8=733, int8=733), 48e9, 864e9, 100 * GIGABIT, 350, 1.2,
        products=("NVIDIA-L40S",), scale_up=32e9, domain=8, generation="ada",
    ),
    # L4, as published: 242 BF16, 485 FP8 and INT8 with sparsity; 30.3 FP32; 24 GB GDDR6, 300 GB/s; 72 W; PCIe 4.0 x16.
    Accelerator(
        "l4", _tera(half=121, single=30.3, fp8=242.5, int8=242.5), 24e9, 300e9, 25 * GIGABIT, 72, 0.7,
        products=("NVIDIA-L4",), scale_up=32e9, domain=8, generation="ada",
    ),
    # MI300X, as published: 1,307.4 BF16, 2,614.9 FP8 and INT8 dense; 163.4 FP32; 192 GB HBM3, 5.3 TB/s; 750 W; seven
    # xGMI links of 128 GB/s in both directions together. NVIDIA's product label does not name it: the resource does.
    Accelerator(
        "mi300x", _tera(half=1307.4, single=163.4, fp8=2614.9, int8=2614.9), 192e9, 5.3e12, 400 * GIGABIT, 750, 2.9,
        resource="amd.com/gpu", scale_up=448e9, domain=8, generation="cdna3",
    ),
    # One core of a server with AVX2: 8 FMA lanes × 2 units × 2 × ~3 GHz; a start that calibration corrects.
    Accelerator(
        "cpu", {"bfloat16": 5e10, "float16": 5e10, "float32": 1e11}, 4 * GIB, 1e10, 10 * GIGABIT, 15, 0.05, resource="",
        generation="cpu",
    ),
)  # fmt: skip

CATALOGUE: Final[Mapping[str, Accelerator]] = {
    entry.name: replace(entry, labels=NODE_LABELS.get(entry.name, {})) for entry in _ENTRIES
}


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
        said = json.loads(text)
        found = _ADAPTER.validate_python({**said, "name": name})
    except (ValidationError, ValueError, TypeError, RecursionError) as error:
        raise BadCatalogueError(f"catalogue entry {name!r}: {error}") from error
    if unknown := sorted(set(said) - {field.name for field in fields(Accelerator)}):
        # No refusal: a newer operator's entries must not take an older one's accelerators away.
        log.warning("catalogue entry %r: unknown fields are not used: %s", name, ", ".join(unknown)[:MAX_WORDS])
    return found


_ADAPTER: Final = TypeAdapter(Accelerator)
