"""One deadline that moves: cheap enough to set before each read and each write of a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from math import inf
from types import TracebackType
from typing import Self, TypeVar

T = TypeVar("T")


class Deadline:
    """Bounds awaits of the current task: `await deadline.of(30, thing)` raises TimeoutError after 30 s.

    `asyncio.timeout` makes and cancels a timer each time; here a timer is armed again only when it goes off too early.
    A cancellation from elsewhere (the client went away) passes through.
    """

    __slots__ = ("_cancelling", "_fired", "_loop", "_task", "_timer", "_until")

    def __init__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a deadline is for a task")
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._cancelling = task.cancelling()
        self._timer: asyncio.TimerHandle | None = None
        self._until = inf
        self._fired = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._until = inf
        if self._timer is not None:
            self._timer.cancel()

    async def of(self, seconds: float, awaitable: Awaitable[T]) -> T:
        """The awaitable's result, or TimeoutError after `seconds`; not to be nested."""
        self._arm(self._loop.time() + seconds)
        try:
            return await awaitable
        except asyncio.CancelledError:
            if self._fired and self._task.uncancel() <= self._cancelling:
                raise TimeoutError from None
            raise
        finally:
            self._until = inf
            self._fired = False

    def _arm(self, until: float) -> None:
        self._until = until
        if self._timer is None or self._timer.when() > until:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(until, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._loop.time() >= self._until:
            self._fired = True
            self._task.cancel()
        elif self._until < inf:
            self._timer = self._loop.call_at(self._until, self._look)
