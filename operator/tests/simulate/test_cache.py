"""Pages and the prefix cache."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.simulate.cache import PrefixCache
from tandem_operator.simulate.memory import Memory
from tandem_operator.simulate.worker import Request
from tests.simulate.made import ENGINE, TRUTH, cluster_of


def memory(tokens):
    return Memory(replace(TRUTH, kv_tokens=tokens), ENGINE)


def passes(room, prompts):
    """One request after another through a memory; how many blocks each found."""
    found = []
    for hashes in prompts:
        request = Request(0.0, len(hashes) * ENGINE.block_tokens, 1, tuple(hashes))
        hold = room.reserve(request, request.prompt)
        found.append(hold.blocks)
        room.publish(request, hold)
        room.release(request, hold)
    return found


@pytest.mark.parametrize(
    ("tokens", "prompts", "hits"),
    [
        pytest.param(None, [(1, 2), (1, 2, 3), (1, 9)], [0, 2, 1], id="the longest common beginning"),
        pytest.param(None, [(1, 2), (3, 2)], [0, 0], id="not the middle"),
        pytest.param(24, [(1,), (2,), (3,), (4,), (1,), (4,)], [0, 0, 0, 0, 0, 1], id="least recently used goes"),
        pytest.param(24, [(1,), (2,), (3,), (1,), (4,), (1,)], [0, 0, 0, 1, 0, 1], id="use makes recent"),
        pytest.param(24, [(1, 2, 3), (4,), (1, 2, 3)], [0, 0, 2], id="the end of a prefix goes first"),
    ],
)
def test_what_is_found(tokens, prompts, hits):
    assert passes(memory(tokens), prompts) == hits


def test_held_blocks_stay_and_are_counted_once():
    room = memory(32)
    one, other = (Request(0.0, 16, 1, (1, 2)) for _ in range(2))
    first = room.reserve(one, 16)
    room.publish(one, first)
    second = room.reserve(other, 16)
    assert (second.pages, second.blocks, room.free) == (0, 2, 4)
    assert room.reserve(Request(0.0, 17, 1), 17) is None
    room.release(one, first)
    assert room.free == 4
    room.release(other, second)
    assert room.free == 8


@given(st.lists(st.lists(st.integers(0, 6), max_size=5), max_size=30))
def test_memory_never_overflows_and_all_comes_back(prompts):
    room, held = memory(48), []
    for hashes in prompts:
        prefixes = tuple(hash(tuple(hashes[: n + 1])) for n in range(len(hashes)))
        request = Request(0.0, 8 * len(hashes) + 3, 1, prefixes)
        if hold := room.reserve(request, request.prompt):
            room.publish(request, hold)
            held.append((request, hold))
        elif held:
            room.release(*held.pop(0))
        assert room.own + room.block_pages * len(room.cache) <= room.room
        assert 0 <= room.free <= room.room
    for one in held:
        room.release(*one)
    assert room.free == room.room


@given(st.lists(st.integers(0, 3), max_size=20))
def test_hold_and_release_are_inverse(blocks):
    cache = PrefixCache()
    for _ in range(2):
        cache.hold(sorted(set(blocks)))
    cache.release(sorted(set(blocks)))
    assert cache.held == len(set(blocks))
    cache.release(sorted(set(blocks)))
    assert (cache.held, len(cache)) == (0, len(set(blocks)))


def test_what_is_cached_is_not_computed():
    hashes = tuple(range(10))
    made = cluster_of([Request(0.0, 80, 1, hashes), Request(9.0, 80, 1, hashes)], decode=1)
    made.run_until(100)
    cold, warm = made.finished
    # All ten blocks are there, but the last token is computed: it gives the answer.
    assert warm.ttft_s == pytest.approx(TRUTH.prompt_base_s + TRUTH.chunk_s(79, 1), rel=1e-9)
    assert warm.ttft_s < cold.ttft_s


def test_a_full_memory_throws_the_youngest_out_and_it_is_computed_again():
    """Two requests of 8 + 40 tokens in 60: the older one is never disturbed."""
    truth = replace(TRUTH, kv_tokens=60)
    made = cluster_of([Request(0.0, 8, 40), Request(0.001, 8, 40)], 0, 0, both=1, truth=truth)
    made.run_until(100)
    first, second = made.finished
    assert (first.arrived, first.retries, second.retries) == (0.0, 0, 1)
    assert made.preempted == 1
    assert made.workers[0].memory.own == 0


def test_a_full_decode_worker_holds_prompts_back():
    truth = replace(TRUTH, kv_tokens=48)
    made = cluster_of([Request(0.0, 40, 5), Request(0.0, 40, 5)], truth=truth)
    made.run_until(100)
    first, second = made.finished
    assert second.ttft_s > first.done_at
    assert made.preempted == 0
