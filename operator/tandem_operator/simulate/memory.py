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
    """All or nothing at admission; a page at a time while decoding. Idle blocks go when pages are needed.

    `own`: pages of running requests, without blocks. `free`: pages to be had, idle blocks among them.
    """

    __slots__ = ("block_pages", "cache", "engine", "free", "own", "room", "whole_tokens")

    def __init__(self, truth: Truth, engine: Engine) -> None:
        """Empty. Without a limit nothing is ever refused or evicted."""
        self.engine = engine
        self.room = inf if truth.kv_tokens is None else truth.kv_tokens // engine.page_tokens
        self.whole_tokens = self.room * engine.page_tokens
        self.free: float = self.room
        self.own = 0
        self.block_pages = engine.block_tokens // engine.page_tokens
        self.cache = PrefixCache()

    def cached(self, request: Request) -> int:
        """Leading tokens of a request that are here. The last token is always computed: it gives the first answer."""
        if not request.hashes:
            return 0
        return min(self.cache.match(self._full(request)) * self.engine.block_tokens, request.tokens - 1)

    def reserve(self, request: Request, tokens: int, spare: int = 0) -> Hold | None:
        """Pages for so many tokens, its cached blocks kept from eviction; None where they and `spare` do not fit."""
        need = -(-tokens // self.engine.page_tokens)
        if request.hashes:
            return self._reserve_behind(request, need, spare)
        if need + spare > self.free:
            return None
        self._take(need)
        return Hold(need, 0)

    def publish(self, request: Request, hold: Hold) -> None:
        """The KV is here: full blocks of the prompt become the cache's, and one that came twice is kept once."""
        if not request.hashes:
            return
        hashes = self._full(request)[hold.blocks :]
        pages = len(hashes) * self.block_pages
        hold.pages -= pages
        hold.blocks += len(hashes)
        self.own -= pages
        self.cache.hold(hashes)
        self._count()

    def grow(self, pages: int) -> None:
        """Running requests claimed more pages; the caller asked `free`."""
        if self.room < inf:
            self._take(pages)

    def release(self, request: Request, hold: Hold) -> None:
        """Everything back. Blocks stay in the cache."""
        self.own -= hold.pages
        self.free += hold.pages
        if hold.blocks:
            self.cache.release(self._full(request)[: hold.blocks])
            self._count()

    def _reserve_behind(self, request: Request, need: int, spare: int) -> Hold | None:
        hashes = self._full(request)
        blocks = self.cache.match(hashes)
        need -= blocks * self.block_pages
        self.cache.hold(hashes[:blocks])
        self._count()
        if need + spare > self.free:
            self.cache.release(hashes[:blocks])
            self._count()
            return None
        self._take(need)
        return Hold(need, blocks)

    def _take(self, pages: int) -> None:
        """Book pages that are free; idle blocks make way."""
        self.own += pages
        self.free -= pages
        if (idle := len(self.cache.idle)) and self.free < idle * self.block_pages:
            self.cache.evict(ceil(idle - self.free / self.block_pages))

    def _count(self) -> None:
        """Blocks came into use or out of it."""
        self.free = self.room - self.own - self.block_pages * self.cache.held

    def _full(self, request: Request) -> tuple[int, ...]:
        return request.hashes[: request.prompt // self.engine.block_tokens]
