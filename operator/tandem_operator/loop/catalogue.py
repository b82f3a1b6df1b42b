"""The hardware catalogue of this cluster: the mounted ConfigMap where there is one, else the built-in entries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tandem_operator.api.catalogue import CATALOGUE, find, from_data

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tandem_operator.api.catalogue import Accelerator
    from tandem_operator.api.spec import Spec

MAX_ENTRIES = 500
MAX_BYTES = 64 * 1024  # one entry


def load(folder: str) -> Mapping[str, Accelerator]:
    """All entries of the folder (a key of the ConfigMap is a file). Raises BadCatalogueError, naming the entry."""
    # A mounted ConfigMap keeps its own bookkeeping in names that begin with two dots.
    files = sorted(path for path in Path(folder).glob("*") if path.is_file()) if folder else []
    data = {
        path.name: path.read_text(encoding="utf-8")[:MAX_BYTES] for path in files[:MAX_ENTRIES] if path.name[0] != "."
    }
    return from_data(data) if data else CATALOGUE


def accelerators_of(spec: Spec, catalogue: Mapping[str, Accelerator]) -> dict[str, Accelerator]:
    """The catalogue's entries that the pools name. Raises UnknownAcceleratorError."""
    return {name: find(name, catalogue) for name in {pool.hardware.accelerator for pool in spec.pools}}
