"""Finished pages that a transfer reads where they lie: they are lent, and nobody else gets them until they are back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    import threading

    from torch import Tensor

    from tandem_worker.engine.pages import PagePool
    from tandem_worker.engine.store import KvStore

LENT_SHARE: Final = 0.5  # of all pages; what is more is copied, so that slow readers never hold up the others' prefills


def runs(raw: memoryview, page_bytes: int, pages: Sequence[int]) -> list[memoryview]:
    """The pages' bytes themselves, in their order; neighbours are one piece."""
    found: list[list[int]] = []
    for page in pages:
        if found and found[-1][1] == page:
            found[-1][1] = page + 1
        else:
            found.append([page, page + 1])
    return [raw[start * page_bytes : end * page_bytes] for start, end in found]


def nobody(pages: Sequence[int]) -> None:
    """A copy is nobody's: it goes with its last user."""


@dataclass(slots=True)
class Loan:
    """Pages as they go over the wire, `page_bytes` each: they hold what they hold until `end`."""

    pages: Sequence[int]  # their numbers where they lie, in the order of the prompt
    page_bytes: int
    show: Callable[[Sequence[int]], list[memoryview]]  # their bytes
    take_back: Callable[[Sequence[int]], None] = nobody
    in_place: bool = True  # or a copy

    @property
    def pieces(self) -> list[memoryview]:
        """Their bytes, in order."""
        return self.show(self.pages)

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.pages) * self.page_bytes

    def split(self, most: int) -> list[Loan]:
        """The same as loans of at most so many pages, each of which ends by itself; this one is no more."""
        pages, self.pages = self.pages, ()
        cuts = range(0, len(pages), most)
        return [replace(self, pages=pages[at : at + most]) for at in cuts]

    def end(self) -> None:
        """Nobody reads them any more. Twice is harmless; from any thread."""
        pages, self.pages = self.pages, ()
        if pages:
            self.take_back(pages)


def copied(copy: Tensor, count: int) -> Loan:
    """A contiguous copy of so many pages."""
    raw: memoryview = copy.reshape(-1).view(torch.uint8).numpy().data
    size = len(raw) // count
    return Loan(range(count), size, partial(runs, raw, size), in_place=False)


class Lending:
    """What of one engine's pages is lent."""

    def __init__(self, pool: PagePool, store: KvStore, lock: threading.Condition) -> None:
        self._pool = pool
        self._store = store
        self._lock = lock
        self._most = int(store.pages * LENT_SHARE)

    def lend(self, pages: Sequence[int], shares: int) -> Loan:
        """Held pages, whose contents nobody changes any more; a copy where too many are lent, or they lie otherwise.

        `shares`: the parts that each page is wanted in, see KvStore.read.
        """
        with self._lock:
            in_place = self._store.in_place and shares == self._store.shares
            if in_place and self._pool.lent_pages + len(pages) <= self._most:
                self._pool.lend(pages)
                return Loan(tuple(pages), self._store.whole_bytes, self._store.memory, self._take_back)
        return self._store.lend(pages, shares)

    def _take_back(self, pages: Sequence[int]) -> None:
        with self._lock:
            self._store.clear(self._pool.take_back(pages))
            self._lock.notify_all()  # a prompt may wait for room
