"""How much of a prompt each worker has in its prefix cache, by the prompt's bytes: nobody tokenises here.

Workers tell which pages they hold, with hashes of the blocks of bytes that end in them (`GET /kv_events`). No I/O.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

BLOCK_BYTES = 256  # these three as in the worker's `engine/events.py`; a test holds the two together
MAX_BLOCKS = 1024
HASH_BYTES = 8
MAX_PAGES = 1 << 20  # of one worker; what is told beyond is not kept


def prompt_blocks(content: bytes, salt: bytes = b"") -> tuple[str, ...]:
    """Hashes of a prompt's whole blocks, each covering all bytes up to its end; `salt`: its tools."""
    before = hashlib.blake2b(salt, digest_size=HASH_BYTES).digest()
    blocks = []
    for start in range(0, min(len(content), MAX_BLOCKS * BLOCK_BYTES) - BLOCK_BYTES + 1, BLOCK_BYTES):
        piece = content[start : start + BLOCK_BYTES]
        before = hashlib.blake2b(before + piece, digest_size=HASH_BYTES).digest()
        blocks.append(before.hex())
    return tuple(blocks)


@dataclass(slots=True)
class Cache:
    """What one worker told: leading tokens by block, and blocks by page."""

    tokens: dict[str, int] = field(default_factory=dict)
    pages: dict[str, list[str]] = field(default_factory=dict)


class Overlap:
    """The prefix caches of all workers, by name."""

    def __init__(self) -> None:
        self._caches: dict[str, Cache] = {}

    def forget(self, worker: str) -> None:
        """It is gone, or tells everything anew."""
        self._caches.pop(worker, None)

    def stored(self, worker: str, page: str, blocks: Iterable[tuple[str, int]]) -> None:
        """It holds this page, in which these blocks end."""
        cache = self._caches.setdefault(worker, Cache())
        if page in cache.pages or len(cache.pages) < MAX_PAGES:
            known = cache.pages.setdefault(page, [])
            for block, tokens in blocks:
                cache.tokens[block] = tokens
                known.append(block)

    def removed(self, worker: str, page: str) -> None:
        """It holds this page no more."""
        if (cache := self._caches.get(worker)) is not None:
            for block in cache.pages.pop(page, ()):
                cache.tokens.pop(block, None)

    def cached(self, blocks: Sequence[str]) -> dict[str, int]:
        """Leading tokens of a prompt that each worker holds; workers that hold none are left out."""
        found: dict[str, int] = {}
        for worker, cache in self._caches.items():
            for block in blocks:
                if (tokens := cache.tokens.get(block)) is None:
                    break
                found[worker] = tokens
        return found
