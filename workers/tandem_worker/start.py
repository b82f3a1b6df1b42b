"""What `tandem-worker` runs: it can be ended from its first moment on."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Final

TERMINATED: Final = 128 + signal.SIGTERM


def main() -> None:
    """Import the worker, which takes seconds, and run it."""
    # The first process of a container has no default action: without this, SIGTERM would be lost until the worker
    # listens to it, and a pod that is deleted while it starts would take its whole grace.
    signal.signal(signal.SIGTERM, end)
    from tandem_worker.main import main as run  # noqa: PLC0415

    run()


def end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    """Nobody is served yet, so there is nothing to finish."""
    os.write(sys.stderr.fileno(), b"ended before it was ready\n")  # no buffers: a handler may interrupt anything
    os._exit(TERMINATED)
