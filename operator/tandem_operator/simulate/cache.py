"""The prefix cache of one worker: full blocks by hash, held while a request uses them, then kept while they fit."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class PrefixCache:
    """Least recently used blocks go first; a held block never goes. `idle`: blocks that may go, in order of last use.

    A hash covers its block and all before it, so equal hashes mean equal prefixes.
    """

    __slots__ = ("_held", "idle")

    def __init__(self) -> None:
        """Nothing is cached."""
        self._held: dict[int, int] = {}  # hash -> users
        self.idle: dict[int, None] = {}

    def __len__(self) -> int:
        """Blocks in memory, held and idle."""
        return len(self._held) + len(self.idle)

    @property
    def held(self) -> int:
        """Blocks in use."""
        return len(self._held)

    def match(self, hashes: Sequence[int]) -> int:
        """Leading blocks that are here."""
        held, idle = self._held, self.idle
        for count, one in enumerate(hashes):
            if one not in held and one not in idle:
                return count
        return len(hashes)

    def hold(self, hashes: Sequence[int]) -> int:
        """Use these blocks; those that were not here are now. Returns how many were new."""
        new = 0
        for one in hashes:
            if one in self.idle:
                del self.idle[one]
            elif one not in self._held:
                new += 1
            self._held[one] = self._held.get(one, 0) + 1
        return new

    def release(self, hashes: Sequence[int]) -> None:
        """Use them no more. The end of a prefix is the first to go: a block is of no use without those before it."""
        for one in reversed(hashes):
            if self._held[one] > 1:
                self._held[one] -= 1
            else:
                del self._held[one]
                self.idle[one] = None

    def evict(self, blocks: int) -> None:
        """Forget so many idle blocks, or all that there are."""
        for one in list(islice(self.idle, blocks)):
            del self.idle[one]
