"""The decode half before it decodes: pages promised to a prompt whose KV comes from elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tandem_worker.engine.request import Reservation, ReservationError, Sampling, Shortage

if TYPE_CHECKING:
    from tandem_worker.engine.pages import Claim, Digest, PagePool
    from tandem_worker.engine.store import KvStore


@dataclass(frozen=True, slots=True)
class Held:
    """An open reservation; `touched` and `written` are page numbers of the prompt (0 = its first page)."""

    prompt: tuple[int, ...]
    sampling: Sampling
    chain: tuple[Digest, ...]
    claim: Claim
    touched: set[int] = field(default_factory=set)  # somebody was shown their memory
    written: set[int] = field(default_factory=set)


class Reservations:
    """All open reservations. Not thread-safe: the engine holds its lock."""

    def __init__(self, pool: PagePool, store: KvStore) -> None:
        self._pool = pool
        self._store = store
        self._held: dict[str, Held] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._held

    def reserve(
        self, key: str, prompt: tuple[int, ...], sampling: Sampling, chain: tuple[Digest, ...], spare: int
    ) -> Reservation | Shortage:
        """Pages for the whole prompt, or nothing. `spare`: pages to leave for those who decode already."""
        if key in self._held:
            raise ReservationError(f"{key!r} has a reservation already; release it first")
        # At least the last page always travels, so that a transfer is never empty.
        usable = chain[: (len(prompt) - 1) // self._pool.page_tokens]
        need = self._pool.pages_for(len(prompt)) - self._pool.match(usable)
        if need + spare > self._pool.free_pages:
            return Shortage(need=need, free=max(self._pool.free_pages - spare, 0))
        claim = self._pool.reserve(len(prompt), usable)
        if isinstance(claim, Shortage):
            return claim
        if not self._store.stage(claim.pages[claim.shared :]):
            self._pool.release(claim.pages)
            return Shortage(need=need, free=0)
        self._held[key] = Held(prompt, sampling, chain, claim)
        return Reservation(key, claim.shared, len(claim.pages))

    def open_pages(self, key: str, first_page: int, count: int) -> list[memoryview]:
        """The memory of reserved pages. Raises ReservationError when it has ended or the pages are not its own."""
        held, pages = self._own(key, first_page, count)
        held.touched.update(pages)
        return self._store.memory(held.claim.pages[pages.start : pages.stop])

    def pages_written(self, key: str, first_page: int, count: int) -> None:
        """They are filled. Raises as `open_pages`."""
        held, pages = self._own(key, first_page, count)
        self._store.filled(held.claim.pages[pages.start : pages.stop])
        if pages.stop == len(held.claim.pages):
            rows = len(held.prompt) - (pages.stop - 1) * self._pool.page_tokens
            self._store.blank(held.claim.pages[-1], rows)
        held.written.update(pages)

    def _own(self, key: str, first_page: int, count: int) -> tuple[Held, range]:
        held = self.find(key)
        end = first_page + count
        if not held.claim.shared <= first_page < end <= len(held.claim.pages):
            raise ReservationError(
                f"pages {first_page} to {end - 1} were offered for {key!r}, which takes "
                f"{held.claim.shared} to {len(held.claim.pages) - 1}"
            )
        return held, range(first_page, end)

    def take(self, key: str) -> Held:
        """End a reservation whose pages are all there; the caller owns them now. Raises ReservationError."""
        held = self.find(key)
        missing = len(held.claim.pages) - held.claim.shared - len(held.written)
        if missing:
            raise ReservationError(f"{missing} of {len(held.claim.pages)} pages of {key!r} were never written")
        self._store.unstage(held.claim.pages)
        return self._held.pop(key)

    def release(self, key: str) -> None:
        """Give the pages back; nothing happens when it has ended already."""
        if (held := self._held.pop(key, None)) is not None:
            # What has come of an unfinished prompt may hold anything, NaN too.
            self._store.clear([held.claim.pages[at] for at in held.touched])
            self._store.unstage(held.claim.pages)
            self._pool.release(held.claim.pages)

    def quarantine(self, key: str) -> int:
        """End it, but keep the pages that a writer may still write to away from everybody. Their number."""
        if (held := self._held.pop(key, None)) is None:
            return 0
        self._pool.release(held.claim.pages[: held.claim.shared])  # nobody was ever told to write to these
        own = held.claim.pages[held.claim.shared :]
        self._pool.quarantine(key, own)
        return len(own)

    def find(self, key: str) -> Held:
        """An open one. Raises ReservationError."""
        if key not in self._held:
            raise ReservationError(f"there is no reservation {key!r}; it was released, committed or never made")
        return self._held[key]
