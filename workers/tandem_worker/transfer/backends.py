"""The backends by name, and a plain refusal for those that this worker cannot use."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tandem_worker.transfer.base import BackendError
from tandem_worker.transfer.mooncake import Mooncake
from tandem_worker.transfer.nixl import Nixl
from tandem_worker.transfer.shm import Shm
from tandem_worker.transfer.tcp import Tcp

if TYPE_CHECKING:
    from tandem_worker.transfer.base import Backend

NAMES: Final = ("tcp", "shm", "nixl", "mooncake")
PACKAGES: Final = {"nixl": "nixl", "mooncake": "mooncake"}  # backend → what its extra installs


def check_backend(name: str) -> str:
    """The name itself. Raises BackendError for one that is not known, or whose package is not installed."""
    if name not in NAMES:
        raise BackendError(f"--transfer-backend {name} is not one of this worker's: {', '.join(NAMES)}")
    if name in PACKAGES and find_spec(PACKAGES[name]) is None:
        raise BackendError(
            f"--transfer-backend {name} needs the Python package {PACKAGES[name]}, which is not installed here: "
            f"install the extra `{name}`, or use tcp"
        )
    return name


def make_backend(name: str, directory: Path, host: str) -> Backend:
    """`directory`: where workers of one machine meet; `host`: this worker's own address. Raises BackendError."""
    match check_backend(name):
        case Shm.name:
            try:
                return Shm(directory)
            except OSError as error:
                raise BackendError(f"--transfer-backend {name}: no socket in {directory}: {error}") from error
        case Nixl.name:
            return Nixl(host)
        case Mooncake.name:
            return Mooncake(host)
    return Tcp()
