"""Where a model computes: this machine's CPU, or a CUDA device of its own for each rank. Decided once, at start."""

from __future__ import annotations

from typing import Final

import torch

from tandem_worker.engine.request import EngineSettings, ModelLoadError

KV_SHARE: Final = 0.85  # of what is free once weights are loaded; the rest is for activations, graphs and libraries
CPU_KV_MIB: Final = 512


def choose_device(wanted: str, devices: int, settings: EngineSettings) -> str:
    """`cpu` or `cuda`. `devices`: CUDA devices of this machine; pure.

    Raises ModelLoadError for what the chosen device cannot serve.
    """
    if wanted == "cpu" or (wanted == "auto" and not devices):
        return "cpu"
    if not devices:
        raise ModelLoadError("--device cuda: torch sees no CUDA device here; use --device cpu, or ask for a GPU")
    if settings.tensor_parallel > devices:
        raise ModelLoadError(
            f"--tensor-parallel {settings.tensor_parallel} needs as many CUDA devices; this worker sees {devices}"
        )
    if settings.tensor_parallel > 1 and not settings.kv_memory_mib:
        raise ModelLoadError("--tensor-parallel on CUDA: say --kv-memory-mib, which all ranks must agree on beforehand")
    if settings.weights:
        raise ModelLoadError(f"--weights {settings.weights} is served on CPUs; leave it out, or use --device cpu")
    return "cuda"


def cuda_devices() -> int:
    """How many CUDA devices torch can use here."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def device_of(settings: EngineSettings, rank: int = 0) -> torch.device:
    """A rank's own."""
    return torch.device("cuda", rank) if settings.device == "cuda" else torch.device("cpu")


def kv_memory_mib(settings: EngineSettings) -> int:
    """What was asked for; else by what is free on the device now, after the weights."""
    if settings.kv_memory_mib:
        return settings.kv_memory_mib
    return CPU_KV_MIB if settings.device == "cpu" else share_of(torch.cuda.mem_get_info(device_of(settings))[0])


def share_of(free_bytes: int) -> int:
    """MiB of KV pages for so much free device memory."""
    return int(free_bytes * KV_SHARE) >> 20
