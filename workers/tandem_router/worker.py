"""One worker as the API server shows it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What a worker does now; the value of the label `tandem.dev/role`."""

    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker pod. `address` and `kv_address` are `ip:port`, empty while the pod has no address."""

    name: str
    address: str
    kv_address: str
    role: Role
    ready: bool
    deleting: bool = False
    revision: str = ""  # workers of one revision may share a request

    @property
    def can_serve(self) -> bool:
        """May new requests go there?"""
        return self.ready and not self.deleting and bool(self.address)
