"""What every connection of a worker is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tandem_worker.transfer.base import Backend, Meter
    from tandem_worker.transfer.handshake import Identity


@dataclass(frozen=True, slots=True)
class Terms:
    """What both sides of every connection of this worker share."""

    identity: Identity
    key: bytes
    page_bytes: int
    frame_bytes: int
    backend: Backend
    meter: Meter
    connections: int = 1  # to each peer; more than one where a single stream does not fill the network
