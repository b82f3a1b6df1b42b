"""Holds requests while no worker can take any: of a resource that scales to zero, the first one waits for the start."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tandem_router.errors import RefusedError
from tandem_router.placement import Pair

if TYPE_CHECKING:
    from collections.abc import Callable

    from tandem_router.attempts import Bell
    from tandem_router.workers import Registry

MOST_HELD = 256  # a request is at most 4 MiB
RETRY_AFTER_S = 10


@dataclass(slots=True)
class Lobby:
    """`hold_s`: how long a request waits at most, 0: it is not held here. `on_change` is told how many wait."""

    registry: Registry
    bell: Bell
    hold_s: float
    on_change: Callable[[int], None]
    most: int = MOST_HELD
    held: int = 0

    async def wait(self) -> None:
        """Until a worker can take a request. Raises RefusedError (503) at the deadline, or where too many wait."""
        if self.hold_s <= 0 or self._open():
            return
        if self.held >= self.most:
            raise refused(f"{self.most} requests wait for the first worker already")
        self._count(1)
        try:
            await self._until(asyncio.get_running_loop().time() + self.hold_s)
        finally:
            self._count(-1)

    async def _until(self, end: float) -> None:
        clock = asyncio.get_running_loop().time
        while not self._open():
            if (left := end - clock()) <= 0:
                raise refused(f"No worker came up within {self.hold_s:g} s")
            await self.bell.wait(left)

    def _open(self) -> bool:
        return isinstance(self.registry.can_place(asyncio.get_running_loop().time()), Pair)

    def _count(self, change: int) -> None:
        self.held += change
        self.on_change(self.held)


def refused(why: str) -> RefusedError:
    """The refusal of who cannot wait (any longer)."""
    return RefusedError(503, f"{why}. The model is being started: try again.", "starting", retry_after_s=RETRY_AFTER_S)
