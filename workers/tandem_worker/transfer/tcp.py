"""Pages as bytes of the control connection itself: always possible, and what every other backend falls back to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem_worker.transfer.base import Fence, LaneError

if TYPE_CHECKING:
    from tandem_worker.engine.memory import MemoryFile
    from tandem_worker.transfer.base import Lane
    from tandem_worker.transfer.wire import Lend


class Tcp:
    """The receiver itself copies, so nothing lands after its connection's end: fence CONNECTION."""

    name = "tcp"
    fence = Fence.CONNECTION

    def open(self, memory: memoryview, file: MemoryFile | None) -> None:
        """Bytes of a connection go anywhere."""

    def lend(self) -> tuple[Lane, Lend] | None:
        """Nothing lies beside the connection."""
        return None

    async def borrow(self, lend: Lend) -> Lane:
        """Raises LaneError: a peer with the same backend lends nothing."""
        raise LaneError(f"this worker's backend is tcp, the peer lends {lend.backend}")

    def close(self) -> None:
        """Nothing is held."""
