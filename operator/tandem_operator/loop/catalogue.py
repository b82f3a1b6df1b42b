"""The hardware catalogue of this cluster: the built-in entries, and over them those of the mounted ConfigMap."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tandem_operator.api.catalogue import CATALOGUE, Accelerator, find, from_data

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tandem_operator.api.spec import Spec
    from tandem_operator.api.spec_pool import Hardware

MAX_ENTRIES = 500
MAX_BYTES = 64 * 1024  # one entry


def load(folder: str) -> Mapping[str, Accelerator]:
    """All entries of the folder (a key of the ConfigMap is a file). Raises BadCatalogueError, naming the entry."""
    # A mounted ConfigMap keeps its own bookkeeping in names that begin with two dots.
    files = sorted(path for path in Path(folder).glob("*") if path.is_file()) if folder else []
    entries = [path for path in files[:MAX_ENTRIES] if path.name[0] != "."]
    # What is no UTF-8 is no JSON either, and its entry is named as any other that cannot be read.
    data = {path.name: path.read_bytes()[:MAX_BYTES].decode(errors="replace") for path in entries}
    return {**CATALOGUE, **from_data(data)}


def accelerators_of(spec: Spec, catalogue: Mapping[str, Accelerator]) -> dict[str, Accelerator]:
    """Each pool's accelerator, by the pool's name. Raises UnknownAcceleratorError."""
    return {pool.name: accelerator_of(pool.hardware, catalogue) for pool in spec.pools}


def accelerator_of(hardware: Hardware, catalogue: Mapping[str, Accelerator]) -> Accelerator:
    """The catalogue's entry as far as a pod's shape needs it; one that it lacks, where the pool has all its figures."""
    name = hardware.accelerator
    # The figures of a pool are the planner's (limits.device_of); a pod needs only how to ask for the device.
    unknown = Accelerator(name, {}, 0.0, 0.0, 0.0, 0.0, 0.0, resource="")
    entry = unknown if name not in catalogue and hardware.is_complete else find(name, catalogue)
    resource = entry.resource if hardware.resource_name is None else hardware.resource_name
    return replace(entry, resource=resource, per_node=hardware.per_node or entry.per_node)
