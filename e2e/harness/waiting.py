"""Waiting for a fact, always with a deadline, never for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class GaveUpError(RuntimeError):
    """The fact did not come true in time."""


def until(what: str, look: Callable[[], T | None], seconds: float, every: float = 0.25) -> T:
    """Look again until `look` gives something true; raise GaveUpError with `what` and the last answer otherwise."""
    end = time.monotonic() + seconds
    while True:
        answer = look()
        if answer:
            return answer
        if time.monotonic() > end:
            raise GaveUpError(f"{what}: not so after {seconds:.0f} s (last seen: {answer!r})")
        time.sleep(every)
