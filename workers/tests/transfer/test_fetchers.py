"""Reads that wait are carried out together: in as few pieces as they lie in, each as small as a library takes."""

import asyncio
import queue

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_worker.transfer import mooncake, nixl
from tandem_worker.transfer.base import LaneError
from tandem_worker.transfer.ends import BATCH_BYTES, Fetchers, Flying, cut, joined, next_batch
from workers.tests.transfer.kit import eventually

WITHIN_S = 5.0
SIZES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 50)), max_size=20)


def moves_of(gaps):
    """Moves with these gaps between them, at their source and at their target."""
    moves, at, target = [], 0, 1000
    for before, behind, size in gaps:
        at, target = at + before, target + behind
        moves.append((at, target, size))
        at, target = at + size, target + size
    return moves


def bytes_of(moves):
    return [(at + n, target + n) for at, target, size in moves for n in range(size)]


@given(SIZES, st.integers(1, 60))
def test_neighbours_are_joined_and_pieces_cut_and_each_byte_stays_where_it_was(gaps, most):
    moves = moves_of(gaps)
    one = joined(moves)
    assert bytes_of(one) == bytes_of(moves)
    assert len(one) == len(moves[:1]) + sum(before > 0 or behind > 0 for before, behind, _ in gaps[1:])
    pieces = list(cut(one, most))
    assert bytes_of(pieces) == bytes_of(moves)
    assert all(size <= most for _, _, size in pieces)


HALF = BATCH_BYTES // 2


@pytest.mark.parametrize(
    ("waiting", "batches"),
    [
        pytest.param([1, 2, 3], [[1, 2, 3]], id="what waits goes together"),
        pytest.param([HALF, HALF, 1], [[HALF, HALF], [1]], id="up to a bound"),
        pytest.param([BATCH_BYTES * 3, 1], [[BATCH_BYTES * 3], [1]], id="one that is longer goes alone"),
        pytest.param([1, None, None], [[1], [], []], id="the end is heard by every thread"),
    ],
)
def test_a_batch_is_what_waits_up_to_a_bound(waiting, batches):
    jobs = queue.SimpleQueue()
    for size in waiting:
        jobs.put(None if size is None else ([(0, 0, size)], None, None))
    assert [[moves[0][2] for moves, _, _ in next_batch(jobs)] for _ in batches] == batches
    assert jobs.empty()


class Refusing:
    """A transfer engine whose queue is as short as the real one's must not be."""

    def __init__(self):
        self.calls = []

    def batch_transfer_sync_read(self, peer, here, there, sizes):
        self.calls.append(sizes)
        return -1 if len(sizes) > mooncake.PIECES_AT_ONCE or max(sizes) > mooncake.PIECE_BYTES else 0


@pytest.mark.parametrize("pieces", [1, 4000])
async def test_mooncake_is_asked_for_no_more_pieces_at_once_than_it_takes(pieces):
    engine = Refusing()
    reader = mooncake.Reader(engine, "p", 0, 2**40, memoryview(b""))
    assert reader._read([(n * 3_000_000, n * 7_000_000, 2_500_000) for n in range(pieces)]) == ""
    assert sum(map(sum, engine.calls)) == pieces * 2_500_000
    reader.close()


class Jobs:
    """Fetches of one thread, whose `read` is a test's."""

    def __init__(self, read):
        self.flying = Flying()
        self.fetchers = Fetchers("test", 1, self.flying, read)

    async def fetch(self):
        async with asyncio.timeout(WITHIN_S):
            await asyncio.shield(self.fetchers.add([(0, 0, 1)]))


async def test_a_read_that_cannot_be_set_up_is_over(monkeypatch):
    jobs = Jobs(lambda moves: "")

    def short(moves):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("tandem_worker.transfer.ends.joined", short)
        with pytest.raises(LaneError, match="no memory"):
            await jobs.fetch()
    await jobs.fetch()
    assert not jobs.flying
    jobs.fetchers.close()


async def test_a_read_of_which_nobody_knows_is_never_over_but_the_next_one_is(caplog):
    ends = iter([MemoryError(), ""])

    def read(moves):
        if isinstance(end := next(ends), Exception):
            raise end
        return end

    jobs = Jobs(read)
    unknown = jobs.fetchers.add([(0, 0, 1)])
    await eventually(lambda: "whose end is not known" in caplog.text, "the first read has failed")
    await jobs.fetch()
    assert not unknown.done()
    assert jobs.flying
    jobs.fetchers.close()


class Short:
    """Stands for both libraries, at the moment before a read begins."""

    def __init__(self):
        self.begun = False

    def get_xfer_descs(self, *_):
        raise MemoryError

    initialize_xfer = get_xfer_descs

    def transfer(self, *_):
        self.begun = True

    batch_transfer_sync_read = transfer


def by_nixl(library):
    agent = nixl.Agent.__new__(nixl.Agent)
    agent.errors, agent.raw = (ValueError,), library
    return agent.read("p", 0, [(0, 0, 1)])


def by_mooncake(library):
    return mooncake.Reader(library, "p", 0, 2**40, memoryview(b""))._read([(0, 0, 1)])


@pytest.mark.parametrize("read", [by_nixl, by_mooncake])
def test_what_no_memory_is_left_for_has_not_begun(read, monkeypatch):
    def short(*_):
        raise MemoryError

    monkeypatch.setattr(mooncake, "cut", short)
    library = Short()
    assert "no memory" in read(library)
    assert not library.begun
