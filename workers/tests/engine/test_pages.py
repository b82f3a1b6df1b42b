"""The page pool: nothing is lost, nothing has two owners, the cache never hands out a wrong page."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tandem_worker.engine.pages import Claim, PagePool, page_chain
from tandem_worker.engine.request import Shortage

PAGES = 24
SIZE = 4
ZEROS = b"zeros"


def tokens(family: int, count: int) -> list[int]:
    return [family * 1000 + at // 8 for at in range(count)]


@settings(deadline=None)
@given(st.lists(st.integers(1, 40)))
def test_every_page_comes_back(requests):
    pool = PagePool(PAGES, SIZE)
    held = [claim for count in requests if isinstance(claim := pool.reserve(count), Claim)]
    owned = [page for claim in held for page in claim.pages]
    assert len(owned) == len(set(owned))
    assert pool.free_pages == PAGES - len(owned)
    for claim in held:
        pool.release(claim.pages)
    assert pool.free_pages == PAGES


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        pytest.param(1, Claim, id="one token, one page"),
        pytest.param(PAGES * SIZE, Claim, id="all of it"),
        pytest.param(PAGES * SIZE + 1, Shortage(need=PAGES + 1, free=PAGES), id="one too many: nothing is taken"),
    ],
)
def test_reserve_is_all_or_nothing(count, expected):
    pool = PagePool(PAGES, SIZE)
    got = pool.reserve(count)
    if isinstance(expected, Shortage):
        assert got == expected
        assert pool.free_pages == PAGES
    else:
        assert isinstance(got, Claim)
        assert len(got.pages) == pool.pages_for(count)


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        pytest.param([1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 7, 8], 2, id="the same"),
        pytest.param([1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 7, 9], 1, id="differs in the second page"),
        pytest.param([1, 2, 3, 4, 5, 6, 7, 8], [9, 2, 3, 4, 5, 6, 7, 8], 0, id="a page depends on what is before it"),
        pytest.param([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6], 1, id="a partial page is not shared"),
        pytest.param([1, 2, 3], [1, 2, 3], 0, id="less than a page"),
    ],
)
def test_prefix_is_shared_by_full_pages(first, second, shared):
    pool = PagePool(PAGES, SIZE)
    claim = pool.reserve(len(first))
    pool.remember(page_chain(first, SIZE), claim.pages)
    pool.release(claim.pages)
    again = pool.reserve(len(second), page_chain(second, SIZE))
    assert again.shared == shared
    assert again.pages[:shared] == claim.pages[:shared]


def test_the_least_recently_used_prefix_goes_first():
    pool = PagePool(4, SIZE)
    old, new = page_chain([1] * 8, SIZE), page_chain([2] * 8, SIZE)
    for chain in (old, new):
        claim = pool.reserve(8, chain)
        pool.remember(chain, claim.pages)
        pool.release(claim.pages)
    pool.release(pool.reserve(4).pages)
    assert (pool.match(old), pool.match(new)) == (1, 2)


def test_without_a_cache_nothing_is_found():
    pool = PagePool(PAGES, SIZE, cache=False)
    chain = page_chain([1] * 8, SIZE)
    claim = pool.reserve(8)
    pool.remember(chain, claim.pages)
    assert pool.match(chain) == 0


def test_a_shared_prefix_is_no_room_for_its_own_sharer():
    pool = PagePool(3, SIZE)
    chain = page_chain([1] * 8, SIZE)
    claim = pool.reserve(8)
    pool.remember(chain, claim.pages)
    pool.release(claim.pages)
    assert pool.reserve(16, chain) == Shortage(need=2, free=1)
    assert pool.free_pages == 3


def test_a_lent_page_is_nobodys_until_it_is_back():
    pool = PagePool(PAGES, SIZE)
    claim = pool.reserve(PAGES * SIZE)
    pool.lend(claim.pages[:3])
    pool.lend(claim.pages[2:4])
    pool.release(claim.pages)
    assert (pool.free_pages, pool.lent_pages) == (PAGES - 4, 4)
    assert pool.reserve((PAGES - 3) * SIZE) == Shortage(need=PAGES - 3, free=PAGES - 4)
    pool.take_back(claim.pages[:3])
    assert (pool.free_pages, pool.lent_pages) == (PAGES - 2, 2)
    pool.take_back(claim.pages[2:4])
    assert (pool.free_pages, pool.lent_pages) == (PAGES, 0)


def test_a_lent_page_can_still_be_found_and_is_not_dropped_for_room():
    pool = PagePool(2, SIZE)
    chain = page_chain([1] * 8, SIZE)
    claim = pool.reserve(8)
    pool.remember(chain, claim.pages)
    pool.lend(claim.pages)
    pool.release(claim.pages)
    assert isinstance(pool.reserve(4), Shortage)
    assert pool.reserve(8, chain) == Claim(claim.pages, 2)


def test_what_is_forgotten_while_it_is_lent_is_unsound_only_when_it_is_back():
    pool = PagePool(2, SIZE)
    chain = page_chain([1] * 8, SIZE)
    claim = pool.reserve(8)
    pool.remember(chain, claim.pages)
    pool.lend(claim.pages[:1])
    assert pool.forget(claim.pages) == [claim.pages[1]]
    pool.release(claim.pages)
    assert (pool.match(chain), pool.free_pages) == (0, 1)
    assert pool.take_back(claim.pages[:1]) == [claim.pages[0]]
    assert (pool.match(chain), pool.free_pages) == (0, 2)


def test_what_others_read_too_is_unsound_after_the_last_of_them():
    pool = PagePool(1, SIZE)
    claim = pool.reserve(4)
    for _ in range(2):
        pool.lend(claim.pages)
    assert pool.forget(claim.pages) == []
    pool.release(claim.pages)
    assert pool.take_back(claim.pages) == []
    assert pool.take_back(claim.pages) == list(claim.pages)


@pytest.mark.parametrize("call", ["lend", "take_back"])
def test_what_nobody_holds_is_not_lent_and_what_was_not_lent_does_not_come_back(call):
    with pytest.raises(AssertionError, match="page 3"):
        getattr(PagePool(PAGES, SIZE), call)([3])


class PoolMachine(RuleBasedStateMachine):
    """Any order of claims, growth, caching, loans, failures, quarantine and ends."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(PAGES, SIZE)
        self.held: list[tuple[list[int], list[int]]] = []  # (pages, tokens)
        self.content: dict[int, bytes] = {}  # what a writer put into a page, by digest
        self.quarantined: dict[str, list[int]] = {}
        self.lent: list[tuple[list[int], list[bytes]]] = []  # (pages, what they held)
        self.unsound: set[int] = set()  # forgotten, and not cleared yet
        self.number = 0

    @rule(family=st.integers(0, 2), count=st.integers(1, 40))
    def reserve(self, family: int, count: int) -> None:
        text = tokens(family, count)
        chain = page_chain(text, SIZE)
        claim = self.pool.reserve(count, chain)
        if isinstance(claim, Claim):
            assert [self.content[page] for page in claim.pages[: claim.shared]] == list(chain[: claim.shared])
            assert not self.unsound & set(claim.pages), "a page was given away that was never cleared"
            for page in claim.pages[claim.shared :]:
                self.content[page] = b""
            self.held.append((list(claim.pages), text))

    @rule(at=st.integers(0, 50), computed=st.integers(0, 40))
    def remember(self, at: int, computed: int) -> None:
        if self.held:
            pages, text = self.held[at % len(self.held)]
            chain = page_chain(text[:computed], SIZE)
            for page, digest in zip(pages, chain, strict=False):
                self.content[page] = digest
            self.pool.remember(chain, pages)

    @rule(at=st.integers(0, 50))
    def grow(self, at: int) -> None:
        if self.held and (page := self.pool.grow()) is not None:
            assert page not in self.unsound, "a page was given away that was never cleared"
            self.content[page] = b""
            self.held[at % len(self.held)][0].append(page)

    @rule(at=st.integers(0, 50))
    def release(self, at: int) -> None:
        if self.held:
            pages, _ = self.held.pop(at % len(self.held))
            self.pool.release(pages)

    @rule(at=st.integers(0, 50))
    def lend(self, at: int) -> None:
        if self.held:
            pages = list(self.held[at % len(self.held)][0])
            self.pool.lend(pages)
            self.lent.append((pages, [self.content[page] for page in pages]))

    @rule(at=st.integers(0, 50))
    def take_back(self, at: int) -> None:
        if self.lent:
            self.clear(self.pool.take_back(self.lent.pop(at % len(self.lent))[0]))

    @rule(at=st.integers(0, 50))
    def fail(self, at: int) -> None:
        if self.held:
            pages, _ = self.held.pop(at % len(self.held))
            others = {page for held, _ in self.held for page in held}
            self.unsound |= set(pages) - others
            self.clear(self.pool.forget(pages))
            self.pool.release(pages)

    def clear(self, pages: list[int]) -> None:
        """What the engine does with the pages that it is given for it."""
        assert set(pages) <= self.unsound
        self.unsound -= set(pages)
        for page in pages:
            self.content[page] = ZEROS

    @rule()
    def quarantine(self) -> None:
        claim = self.pool.reserve(6)
        if isinstance(claim, Claim):
            self.number += 1
            self.pool.quarantine(f"q{self.number}", claim.pages)
            self.quarantined[f"q{self.number}"] = list(claim.pages)

    @rule()
    def unquarantine(self) -> None:
        if self.quarantined:
            key, pages = self.quarantined.popitem()
            assert self.pool.unquarantine(key) == tuple(pages)
            assert self.pool.unquarantine(key) == ()

    @invariant()
    def pages_add_up(self) -> None:
        away = {page for pages in self.quarantined.values() for page in pages}
        owned = {page for pages, _ in self.held for page in pages}
        lent = {page for pages, _ in self.lent for page in pages}
        assert not away & (owned | lent)
        assert (self.pool.quarantined_pages, self.pool.lent_pages) == (len(away), len(lent))
        assert self.pool.free_pages + len(away) + len(owned | lent) == PAGES
        assert self.unsound <= lent, "a page that nobody reads was not cleared"

    @invariant()
    def what_is_lent_stays_as_it_is(self) -> None:
        for pages, content in self.lent:
            for page, held in zip(pages, content, strict=True):
                assert self.content[page] == held or not held, "a page that somebody reads was given to somebody else"


TestPool = PoolMachine.TestCase
TestPool.settings = settings(deadline=None, max_examples=50, stateful_step_count=40)
