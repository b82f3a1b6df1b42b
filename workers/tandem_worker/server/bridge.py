"""From the engine's thread to the event loop: many calls, one wake-up."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

LOG = logging.getLogger(__name__)


class Bridge:
    """`post` from any thread; the calls run on the loop in their order. A step of 64 tokens wakes the loop once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._awake = False

    def post(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call `function(*arguments)` on the loop soon. After the loop's end: nothing."""
        self._calls.append((function, arguments))
        # A race here wakes the loop once too often, never too seldom: `_run` clears the mark before it empties.
        if not self._awake and not self._loop.is_closed():
            self._awake = True
            self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        self._awake = False
        while self._calls:
            function, arguments = self._calls.popleft()
            try:
                function(*arguments)
            except Exception:
                # One request's trouble must not swallow the calls of all others behind it.
                LOG.exception("a call from the engine failed")
