"""Who owns which KV page: reference counts, the prefix cache, quarantine. Numbers only; the tensor is elsewhere."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tandem_worker.engine.request import Shortage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

Digest = bytes


@dataclass(frozen=True, slots=True)
class Claim:
    """Pages for one sequence, in order: the first `shared` come from the prefix cache, the rest are its own."""

    pages: tuple[int, ...]
    shared: int


def page_chain(tokens: Sequence[int], page_tokens: int) -> tuple[Digest, ...]:
    """One digest per full page; each covers all tokens up to its page's end, so equal digests mean equal KV."""
    digests: list[Digest] = []
    before = b""
    for start in range(0, len(tokens) - page_tokens + 1, page_tokens):
        content = array("q", tokens[start : start + page_tokens]).tobytes()
        before = hashlib.blake2b(before + content, digest_size=16).digest()
        digests.append(before)
    return tuple(digests)


class PagePool:
    """A fixed number of pages. Each is free, cached (nobody's, but findable), held (1 or more owners) or quarantined.

    One that is lent besides, to somebody who reads it, is neither free nor dropped from the cache before it is back.
    Not thread-safe: its owner holds a lock.
    """

    def __init__(
        self,
        pages: int,
        page_tokens: int,
        *,
        cache: bool = True,
        on_removed: Callable[[Digest], None] = lambda _digest: None,
    ) -> None:
        """`on_removed`: told of each page that can be found no more."""
        self.pages = pages
        self._on_removed = on_removed
        self.page_tokens = page_tokens
        self._cache = cache
        self._free = deque(range(pages))
        self._owners = [0] * pages
        self._page_of: dict[Digest, int] = {}
        self._digest_of: dict[int, Digest] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # cached pages without an owner, least recently used first
        self._quarantine: dict[str, tuple[int, ...]] = {}
        self._lent: Counter[int] = Counter()
        self._unsound: set[int] = set()  # of those that are lent: what nobody may find or have as it is

    @property
    def free_pages(self) -> int:
        """Pages that a claim could have now: free ones and cached ones that may be dropped."""
        return len(self._free) + len(self._idle)

    @property
    def quarantined_pages(self) -> int:
        """Pages that are kept away from everybody."""
        return sum(len(pages) for pages in self._quarantine.values())

    @property
    def lent_pages(self) -> int:
        """Pages that somebody reads, or may read."""
        return len(self._lent)

    def pages_for(self, tokens: int) -> int:
        """Pages that hold so many tokens."""
        return -(-tokens // self.page_tokens)

    def match(self, chain: Sequence[Digest]) -> int:
        """How many leading pages of the chain are in the prefix cache."""
        found = 0
        while found < len(chain) and chain[found] in self._page_of:
            found += 1
        return found

    def reserve(self, tokens: int, chain: Sequence[Digest] = ()) -> Claim | Shortage:
        """Pages for `tokens`, the leading ones shared where `chain` is cached. All or nothing."""
        shared = [self._page_of[digest] for digest in chain[: self.match(chain)]]
        need = self.pages_for(tokens) - len(shared)
        # A cached page that we are about to share cannot be dropped to make room for our own.
        room = self.free_pages - sum(page in self._idle for page in shared)
        if need > room:
            return Shortage(need=need, free=max(room, 0))
        for page in shared:
            self._hold(page)
        return Claim((*shared, *(self._take() for _ in range(need))), len(shared))

    def grow(self) -> int | None:
        """One more page, or None when there is none."""
        return self._take() if self.free_pages else None

    def release(self, pages: Iterable[int]) -> None:
        """Give one ownership of each page back; a page's last owner makes it cached or free."""
        # Last page first, so that the least recently used order drops a chain from its end.
        for page in reversed(tuple(pages)):
            if self._owners[page] < 1:
                raise AssertionError(f"page {page} was given back by somebody who does not own it")
            self._owners[page] -= 1
            self._settle(page)

    def lend(self, pages: Iterable[int]) -> None:
        """Held pages are read by somebody until he gives them back, whoever owns them then."""
        for page in pages:
            if self._owners[page] < 1:
                raise AssertionError(f"page {page} is nobody's, and cannot be lent")
            self._lent[page] += 1

    def take_back(self, pages: Iterable[int]) -> list[int]:
        """End one loan of each page. Those that were forgotten meanwhile and are read no more, to be cleared."""
        unsound: list[int] = []
        for page in reversed(tuple(pages)):
            if not self._lent[page]:
                raise AssertionError(f"page {page} was not lent")
            self._lent[page] -= 1
            if not self._lent[page]:
                del self._lent[page]
                if page in self._unsound:
                    unsound.append(page)
            self._settle(page)
        self._unsound.difference_update(unsound)
        return unsound

    def _settle(self, page: int) -> None:
        """Cached or free, if nobody holds or reads it any more."""
        if self._owners[page] or page in self._lent:
            return
        if page in self._digest_of:
            self._idle[page] = None
        else:
            self._free.append(page)

    def remember(self, chain: Sequence[Digest], pages: Sequence[int]) -> set[Digest]:
        """Make held pages findable by their digests; a digest that is already known keeps its first page. New ones."""
        fresh: set[Digest] = set()
        if not self._cache:
            return fresh
        for digest, page in zip(chain, pages, strict=False):
            if digest not in self._page_of and page not in self._digest_of:
                self._page_of[digest] = page
                self._digest_of[page] = digest
                fresh.add(digest)
        return fresh

    def forget(self, pages: Iterable[int]) -> list[int]:
        """Make held pages of one owner, who releases them now, unfindable: their contents are not sound.

        Those that may be cleared. One that is lent may not, for its reader was promised what it holds: `take_back` says
        when.
        """
        own = [page for page in pages if self._owners[page] == 1]
        for page in own:
            if (digest := self._digest_of.pop(page, None)) is not None:
                self._unfind(digest)
        self._unsound.update(page for page in own if page in self._lent)
        return [page for page in own if page not in self._lent]

    def quarantine(self, key: str, pages: Iterable[int]) -> None:
        """Keep these pages (held once, by the caller) away from everybody until `unquarantine`."""
        kept = tuple(pages)
        if any(self._owners[page] != 1 or page in self._digest_of for page in kept):
            raise AssertionError("only pages with one owner that nobody can find may go into quarantine")
        self._quarantine[key] = (*self._quarantine.get(key, ()), *kept)

    def unquarantine(self, key: str) -> tuple[int, ...]:
        """Nothing writes to the key's pages any more: they are free again. Those pages, whatever they hold now."""
        pages = self._quarantine.pop(key, ())
        self.release(pages)
        return pages

    def _hold(self, page: int) -> None:
        self._owners[page] += 1
        self._idle.pop(page, None)

    def _take(self) -> int:
        page = self._free.popleft() if self._free else self._drop_oldest()
        self._owners[page] = 1
        return page

    def _drop_oldest(self) -> int:
        page, _ = self._idle.popitem(last=False)
        self._unfind(self._digest_of.pop(page))
        return page

    def _unfind(self, digest: Digest) -> None:
        del self._page_of[digest]
        self._on_removed(digest)
