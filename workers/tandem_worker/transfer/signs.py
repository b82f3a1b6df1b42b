"""Whether a peer still lives: bytes from it, and pages that it takes."""

from __future__ import annotations

from typing import Final

PING_EVERY_S: Final = 1.0
SILENT_PINGS: Final = 5  # so many pings of ours without one byte from the peer: it is gone
TAKEN_S: Final = 30.0  # as long as a lease: with pages under way and none taken, the peer is ended


class Signs:
    """Counted in pings, not in seconds: a loop that was late itself must not take its peer for dead."""

    def __init__(self) -> None:
        """Just heard."""
        self._silent = 0
        self._untaken_s = 0.0  # since pages are under way, or since the last one was taken

    def heard(self) -> None:
        """Bytes have come."""
        self._silent = 0

    def took(self) -> None:
        """It has taken a page."""
        self._untaken_s = 0.0

    def missing(self, *, under_way: bool) -> str:
        """Asked before each ping: why the peer is taken for dead, '' while it is not. `under_way`: pages are."""
        self._silent += 1
        if self._silent > SILENT_PINGS:
            return f"no sign of life for {SILENT_PINGS * PING_EVERY_S:.0f} s"
        self._untaken_s = self._untaken_s + PING_EVERY_S if under_way else 0.0
        if self._untaken_s > TAKEN_S:
            return f"no page was taken for {TAKEN_S:.0f} s"
        return ""
