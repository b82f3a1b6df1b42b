"""The KV memory of one worker, in pages: what running requests own, and the blocks of the prefix cache beside it."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf
from typing import TYPE_CHECKING

from tandem_operator.simulate.cache import PrefixCache

if TYPE_CHECKING:
    from tandem_operator.simulate.request import Request
    from tandem_operator.simulate.truth import Engine, Truth


@dataclass(slots=True)
class Hold:
    """One request's share of a worker's memory: pages of its own, and the first `blocks` of its hashes."""

    pages: int
    blocks: int


class Memory:
    """All or nothing at admission; a page at a time while decoding. Idle blocks go when pages are needed."""

    __slots__ = ("block_pages", "cache", "engine", "own", "room")

    def __init__(self, truth: Truth, engine: Engine) -> None:
        """Empty. Without a limit nothing is ever refused or evicted."""
        self.engine = engine
        self.room = inf if truth.kv_tokens is None else truth.kv_tokens // engine.page_tokens
        self.own = 0  # pages of running requests, without blocks
        self.block_pages = engine.block_tokens // engine.page_tokens
        self.cache = PrefixCache()

    @property
    def free(self) -> float:
        """Pages to be had, idle blocks among them."""
        return self.room - self.own - self.block_pages * self.cache.held

    def cached(self, request: Request) -> int:
        """Leading tokens of a request that are here. The last token is always computed: it gives the first answer."""
        if not request.hashes:
            return 0
        return min(self.cache.match(self._full(request)) * self.engine.block_tokens, request.tokens - 1)

    def reserve(self, request: Request, tokens: int, spare: int = 0) -> Hold | None:
        """Pages for so many tokens, its cached blocks kept from eviction; None where they and `spare` do not fit."""
        need, blocks = self.engine.pages(tokens), 0
        hashes: tuple[int, ...] = ()
        if request.hashes:
            hashes = self._full(request)
            blocks = self.cache.match(hashes)
            self.cache.hold(hashes[:blocks])
            need -= blocks * self.block_pages
        if not self._make(need, spare):
            self.cache.release(hashes[:blocks])
            return None
        self.own += need
        return Hold(need, blocks)

    def publish(self, request: Request, hold: Hold) -> None:
        """The KV is here: full blocks of the prompt become the cache's, and one that came twice is kept once."""
        if not request.hashes:
            return
        hashes = self._full(request)[hold.blocks :]
        self.cache.hold(hashes)
        pages = len(hashes) * self.block_pages
        hold.pages -= pages
        hold.blocks += len(hashes)
        self.own -= pages

    def grow(self, pages: int) -> None:
        """Running requests claimed more pages; the caller asked `free`."""
        self._make(pages, 0)
        self.own += pages

    def release(self, request: Request, hold: Hold, pages: int | None = None) -> None:
        """Everything back; `pages`: what its own came to by growing. Blocks stay in the cache."""
        self.own -= hold.pages if pages is None else pages
        if hold.blocks:
            self.cache.release(self._full(request)[: hold.blocks])

    def _make(self, need: int, spare: int) -> bool:
        """Evict until `need` pages fit; False if `need` and `spare` never will."""
        left = self.free - need
        if left < spare:
            return False
        idle = self.block_pages * (len(self.cache) - self.cache.held)
        if left < idle:
            self.cache.evict(ceil((idle - left) / self.block_pages))
        return True

    def _full(self, request: Request) -> tuple[int, ...]:
        return request.hashes[: request.prompt // self.engine.block_tokens]
