"""What the prefix cache holds, told as it changes: for routers that place a request where its prompt's beginning is.

A router does not tokenise. So pages are told with hashes of the prompt's bytes: of fixed blocks, chained, each with the
number of leading tokens that it stands for (a block's end in the prompt, by proportion: an estimate).
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tandem_worker.engine.pages import Digest

BLOCK_BYTES: Final = 256  # the router's `overlap.py` says the same; a test holds the two together
MAX_BLOCKS: Final = 1024  # of one prompt; what lies behind 256 KiB is not told
HASH_BYTES: Final = 8
KEPT: Final = 16_384  # events that a reader may be behind; then it gets the whole state


@dataclass(frozen=True, slots=True)
class Origin:
    """A prompt as it came: the hashes of its blocks of bytes (HASH_BYTES each, joined), and its length in bytes."""

    blocks: bytes = b""
    size: int = 0

    def tokens_of(self, prompt_tokens: int) -> list[tuple[bytes, int]]:
        """(hash, leading tokens that it stands for) of each block."""
        hashes = [self.blocks[at : at + HASH_BYTES] for at in range(0, len(self.blocks), HASH_BYTES)]
        ends = ((at + 1) * BLOCK_BYTES for at in range(len(hashes)))
        return [(one, -(-end * prompt_tokens // max(self.size, end))) for one, end in zip(hashes, ends, strict=True)]


@dataclass(frozen=True, slots=True)
class Stored:
    """A page can be found. It comes again when more blocks of bytes are known to end in it."""

    page: Digest
    blocks: tuple[tuple[bytes, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Removed:
    """A page is no more, nor what was said of it."""

    page: Digest


Event = Stored | Removed


@dataclass(frozen=True, slots=True)
class News:
    """Events up to number `last`; `whole`: they are all that is stored, whatever was told before."""

    events: tuple[Event, ...]
    last: int
    whole: bool = False


def origin_of(content: bytes, salt: bytes = b"") -> Origin:
    """The blocks of a prompt's bytes; `salt`: what comes before every prompt like it (its tools)."""
    before = hashlib.blake2b(salt, digest_size=HASH_BYTES).digest()
    blocks = []
    for start in range(0, min(len(content), MAX_BLOCKS * BLOCK_BYTES) - BLOCK_BYTES + 1, BLOCK_BYTES):
        piece = content[start : start + BLOCK_BYTES]
        before = hashlib.blake2b(before + piece, digest_size=HASH_BYTES).digest()
        blocks.append(before)
    return Origin(b"".join(blocks), len(content))


class KvEvents:
    """The events of one engine, and the state that they add up to. Thread-safe."""

    def __init__(self, page_tokens: int, kept: int = KEPT) -> None:
        self.epoch = secrets.token_hex(8)  # numbers mean something within one process' life only
        self.on_news: Callable[[], None] = lambda: None  # called on the engine's side: quick, and must not raise
        self._page_tokens = page_tokens
        self._lock = threading.Lock()
        self._last = 0
        self._kept: deque[Event] = deque(maxlen=kept)
        self._stored: dict[Digest, dict[bytes, int]] = {}
        self._known: set[bytes] = set()  # blocks that some stored page has

    def stored(self, chain: Sequence[Digest], fresh: Collection[Digest], origin: Origin, prompt_tokens: int) -> None:
        """Pages of this chain can be found, `fresh` ones among them since now."""
        with self._lock:
            found: dict[Digest, dict[bytes, int]] = {digest: {} for digest in chain if digest in fresh}
            for block, tokens in origin.tokens_of(prompt_tokens):
                at = -(-tokens // self._page_tokens) - 1
                if at >= len(chain):
                    break
                if block not in self._known and (chain[at] in found or chain[at] in self._stored):
                    found.setdefault(chain[at], {})[block] = tokens
            for digest, blocks in found.items():
                self._stored.setdefault(digest, {}).update(blocks)
                self._known.update(blocks)
                self._tell(Stored(digest, tuple(blocks.items())))
        if found:
            self.on_news()

    def removed(self, digest: Digest) -> None:
        """A page can be found no more."""
        with self._lock:
            self._known.difference_update(self._stored.pop(digest, {}))
            self._tell(Removed(digest))
        self.on_news()

    def since(self, epoch: str, number: int) -> News:
        """What came after event `number` of this epoch; the whole state where that is not known any more."""
        with self._lock:
            missed = self._last - number
            if epoch == self.epoch and 0 <= missed <= len(self._kept):
                return News(tuple(islice(self._kept, len(self._kept) - missed, None)), self._last)
            whole = tuple(Stored(digest, tuple(blocks.items())) for digest, blocks in self._stored.items())
            return News(whole, self._last, whole=True)

    @property
    def count(self) -> int:
        """Events so far."""
        return self._last

    def _tell(self, event: Event) -> None:
        self._last += 1
        self._kept.append(event)
