"""Where a model computes: this machine's CPU, or a CUDA device of its own for each rank. Decided once, at start."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import torch

from tandem_worker.engine.request import EngineSettings, ModelLoadError

KV_SHARE: Final = 0.85  # of what is free once weights are loaded; the rest is for activations, graphs and libraries
CPU_SHARE: Final = 0.5  # of what a pod's memory limit leaves then; the rest is for activations, grammars and copies
CPU_KV_MIB: Final = 512  # where there is no limit, and for ranks, who agree on it before any weight is read
CGROUP: Final = Path("/sys/fs/cgroup")
LOG = logging.getLogger(__name__)


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


def kv_memory_mib(settings: EngineSettings, group: Path = CGROUP) -> int:
    """What was asked for; else by what is free on the device, or in the pod, now, after the weights."""
    if settings.kv_memory_mib:
        return settings.kv_memory_mib
    if settings.device != "cpu":
        return share_of(torch.cuda.mem_get_info(device_of(settings))[0])
    free = left_in(group) if settings.tensor_parallel == 1 else None
    return CPU_KV_MIB if free is None else share_of(free, CPU_SHARE)


def share_of(free_bytes: int, share: float = KV_SHARE) -> int:
    """MiB of KV pages for so much free memory."""
    LOG.info("KV memory: %d %% of the %d MiB that are free now", round(100 * share), free_bytes >> 20)
    return int(free_bytes * share) >> 20


def left_in(group: Path) -> int | None:
    """Bytes that this container may still take; None where it has no limit (cgroup v2: memory.max of its own group).

    In use is the working set, as the kubelet counts it: all but file pages that nobody has read for a while.
    """
    try:
        limit = (group / "memory.max").read_text().strip()
        current = int((group / "memory.current").read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return None if limit == "max" else max(int(limit) - current + int(stat.get("inactive_file", 0)), 0)
    except (OSError, ValueError):  # another version of cgroups, or none
        return None
