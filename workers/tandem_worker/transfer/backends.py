"""The backends by name, and a plain refusal for those that this worker cannot use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from tandem_worker.transfer.shm import Shm
from tandem_worker.transfer.tcp import Tcp

if TYPE_CHECKING:
    from tandem_worker.transfer.base import Backend

NAMES: Final = ("tcp", "shm")


class BackendError(Exception):
    """The backend cannot be used here; the text says what to choose or to install."""


def check_backend(name: str) -> str:
    """The name itself. Raises BackendError for one that is not built in."""
    if name not in NAMES:
        raise BackendError(f"--transfer-backend {name} is not built into this worker; use {' or '.join(NAMES)}")
    return name


def make_backend(name: str, directory: Path, frame_bytes: int) -> Backend:
    """`directory`: where workers of one machine meet. Raises BackendError."""
    if check_backend(name) == Tcp.name:
        return Tcp()
    try:
        return Shm(directory, frame_bytes)
    except OSError as error:
        raise BackendError(f"--transfer-backend {name}: no socket in {directory}: {error}") from error
