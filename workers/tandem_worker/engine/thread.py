"""The engine's thread, and what it ended with, if it was not told to."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

LOG = logging.getLogger(__name__)


class EngineThread(threading.Thread):
    """Its work returns when it is told to stop. An error ends it too, and then nobody computes: see `lost`."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(name="engine", daemon=True)
        self._work = work
        self.lost = ""  # what to say of it; whoever owns the process looks, and ends it

    def run(self) -> None:
        """See Thread."""
        try:
            self._work()
        except BaseException as error:  # whatever it was, there is no thread any more
            LOG.exception("the engine's thread has ended")
            self.lost = f"the engine's thread has ended: {type(error).__name__}: {error}"
