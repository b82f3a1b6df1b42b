"""Pages that only the end of this process gives back: when there are so many of them that it had better end."""

from __future__ import annotations

from typing import Final

STUCK_S: Final = 10.0  # a writer that was stopped for a moment goes on within it, and its reads then end


class Stuck:
    """Pages of tickets that were cut, and into which a read may still come. A read ends with its reader's process."""

    def __init__(self, most: int) -> None:
        """`most`: pages that the worker can do without."""
        self._most = most
        self._since: float | None = None

    def look(self, pages: int, now: float) -> str:
        """Asked again and again: why the worker should end, "" while it should not."""
        if pages <= self._most:
            self._since = None
            return ""
        self._since = now if self._since is None else self._since
        if now - self._since < STUCK_S:
            return ""
        end = f"only the end of this process frees them, and {self._most} are the most that it does without"
        return f"{pages} pages wait for reads that do not end: {end}"
