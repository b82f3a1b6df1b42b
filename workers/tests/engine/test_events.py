"""KV events: what they add up to is what the cache holds; a reader that was away misses nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_worker.engine import Sampling
from tandem_worker.engine.events import BLOCK_BYTES, MAX_BLOCKS, KvEvents, Removed, Stored, origin_of
from tandem_worker.engine.pages import PagePool, page_chain
from workers.tests.tiny import generate, make_engine, wait_until_idle, write_tiny

PAGE = 4


def applied(events, state=None):
    """The state that events add up to: page → its blocks."""
    state = {} if state is None else state
    for one in events:
        if isinstance(one, Removed):
            del state[one.page]
        else:
            state.setdefault(one.page, {}).update(one.blocks)
    return state


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40), st.booleans()), max_size=40),
    st.integers(1, 30),
    st.lists(st.integers(0, 40), max_size=4),
)
def test_replay_and_snapshot_add_up_to_the_cache(requests, kept, looks):
    events = KvEvents(PAGE, kept)
    pool = PagePool(24, PAGE, on_removed=events.removed)
    state, number = {}, 0
    for which, (family, count, unsound) in enumerate(requests):
        prompt = [family * 100 + at // 8 for at in range(count)]
        chain = page_chain(prompt, PAGE)
        claim = pool.reserve(count, chain)
        fresh = pool.remember(chain, claim.pages)
        origin = origin_of(bytes(f"{family}" * (count * 70), "ascii"))
        events.stored(chain, fresh, origin, count)
        if unsound:
            pool.forget(claim.pages)
        pool.release(claim.pages)
        if which in looks:  # a reader that looks now and then, at times too late for a replay
            news = events.since(events.epoch, number)
            state, number = applied(news.events, {} if news.whole else state), news.last
    news = events.since(events.epoch, number)
    state = applied(news.events, {} if news.whole else state)
    assert set(state) == set(pool._page_of)
    assert state == applied(events.since("another process", 0).events)
    blocks = [block for page in state.values() for block in page]
    assert len(blocks) == len(set(blocks)), "a block of bytes stands at two pages"


@pytest.mark.parametrize(
    ("size", "prompt_tokens", "expected"),
    [
        pytest.param(BLOCK_BYTES - 1, 50, [], id="less than a block"),
        pytest.param(BLOCK_BYTES, 64, [64], id="one block is the whole prompt"),
        pytest.param(4 * BLOCK_BYTES, 100, [25, 50, 75, 100], id="by proportion"),
        pytest.param(BLOCK_BYTES * 2 + 10, 100, [50, 99], id="rounded up: rather a page too late"),
    ],
)
def test_blocks_stand_for_leading_tokens(size, prompt_tokens, expected):
    found = origin_of(b"x" * size).tokens_of(prompt_tokens)
    assert [tokens for _, tokens in found] == expected


def test_blocks_depend_on_what_is_before_them_and_are_bounded():
    one, other = origin_of(b"a" * 1024, b"tools"), origin_of(b"a" * 1024)
    assert not {one.blocks[at : at + 8] for at in range(0, 32, 8)} & {other.blocks[:8]}
    longer = origin_of(b"a" * 1024 + b"b" * 512)
    assert longer.blocks.startswith(other.blocks)
    assert len(origin_of(b"x" * BLOCK_BYTES * (MAX_BLOCKS + 9)).blocks) == MAX_BLOCKS * 8


def test_an_engine_tells_of_its_pages_and_of_those_it_drops(tmp_path):
    engine = make_engine(write_tiny(tmp_path), max_context=128, kv_memory_mib=1)
    try:
        origin = origin_of(b"y" * 1024)
        sampling = Sampling(max_tokens=4, ignore_eos=True, blocks=origin.blocks, prompt_bytes=origin.size)
        generate(engine, [[at % 250 for at in range(100)]], sampling)
        wait_until_idle(engine)
        stored = [one for one in engine.events.since(engine.events.epoch, 0).events if isinstance(one, Stored)]
        assert [tokens for one in stored for _, tokens in one.blocks] == [25, 50, 75, 100]
        # The outputs' pages count too: 103 tokens are computed, in 25 full pages.
        assert len({one.page for one in stored}) == 25
        plain = Sampling(max_tokens=2, ignore_eos=True)
        for first in range(engine.pages * PAGE // 100 + 1):
            generate(engine, [[first % 250] * 60 + [7] * 40], plain)
        wait_until_idle(engine)
        state = applied(engine.events.since("", 0).events)
        assert set(state) == set(engine._pool._page_of)
        assert not any(state.values()), "the first prompt's pages are gone, and its blocks with them"
    finally:
        engine.stop()
