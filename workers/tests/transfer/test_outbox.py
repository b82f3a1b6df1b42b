"""Frames of transfers take turns, a last word never overtakes its pages, and no more is under way than the window."""

from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_worker.engine.lending import Loan
from tandem_worker.transfer.outbox import Outbox
from tandem_worker.transfer.rate import LEAST_BYTES, PERIOD_BYTES, WEIGHT, Rate
from tandem_worker.transfer.wire import Chunk, Commit, Generation

SIZE = 10
ENDED = []  # loans, as (transfer, page), in the order of their ends


@pytest.fixture(autouse=True)
def none_has_ended():
    ENDED.clear()


def generation(number):
    return Generation(1, number)


def add(box, number, page, size=SIZE):
    chunk = Chunk(generation=generation(number), first_page=page, pages=1)
    loan = Loan((page,), size, lambda _pages: [memoryview(bytes(size))], lambda _pages: ENDED.append((number, page)))
    box.add(generation(number), chunk, loan)


def finish(box, number):
    box.finish(generation(number), Commit(generation=generation(number), pages=1))


def drain(box):
    """(transfer, page or None for its last word) of all that leaves now."""
    seen = []
    while (item := box.next()) is not None:
        seen.append((item.generation.counter, getattr(item.message, "first_page", None)))
    return seen


def test_a_small_transfer_is_not_starved_by_a_big_one():
    box = Outbox()
    for page in range(1000):
        add(box, 1, page)
    for page in range(3):
        add(box, 2, page)
    finish(box, 2)
    assert drain(box)[:8] == [(1, 0), (2, 0), (1, 1), (2, 1), (1, 2), (2, 2), (1, 3), (2, None)]


def test_the_window_holds_pages_but_no_last_word():
    box = Outbox(window=2 * SIZE)
    for page in range(4):
        add(box, 1, page)
    finish(box, 2)
    assert drain(box) == [(1, 0), (2, None), (1, 1)]
    assert (box.waiting, box.flying) == (2 * SIZE, 2 * SIZE)
    assert box.taken(generation(1), 0, SIZE)
    assert drain(box) == [(1, 2)]


@pytest.mark.parametrize(("ordered", "first"), [(True, [(1, 0), (1, None)]), (False, [(1, 0)])])
def test_a_last_word_waits_for_pages_that_travel_beside_the_connection(ordered, first):
    box = Outbox()
    box.ordered = ordered
    add(box, 1, 0)
    finish(box, 1)
    assert drain(box) == first
    assert box.settled() == []
    assert box.taken(generation(1), 0, SIZE)
    assert first + drain(box) == [(1, 0), (1, None)]
    assert (box.settled(), box.settled()) == ([generation(1)], [])


@pytest.mark.parametrize("sizes", [(0,), (SIZE + 1,), (SIZE, 1)], ids=["nothing", "too much", "twice"])
def test_nobody_takes_what_is_not_under_way(sizes):
    box = Outbox()
    add(box, 1, 0)
    drain(box)
    assert [box.taken(generation(1), 0, size) for size in sizes][-1] is False
    assert box.taken(generation(9), 0, 1) is False


def test_what_is_dropped_does_not_leave_and_what_left_stays_counted():
    box = Outbox(window=SIZE)
    for page in range(3):
        add(box, 1, page)
    finish(box, 1)
    assert drain(box) == [(1, 0)]
    box.drop(generation(1))
    assert (box.waiting, box.flying, drain(box), box.settled()) == (0, SIZE, [], [])
    box.finish(generation(1), Commit(generation=generation(1), pages=0))
    assert box.taken(generation(1), 0, SIZE)
    assert (drain(box), box.settled()) == ([(1, None)], [generation(1)])


def steps():
    number = st.integers(1, 3)
    return st.lists(
        st.one_of(
            st.tuples(st.just("add"), number),
            st.tuples(st.just("finish"), number),
            st.tuples(st.just("drop"), number),
            st.tuples(st.just("next"), number),
            st.tuples(st.just("taken"), number),
        ),
        max_size=60,
    )


@settings(max_examples=200, deadline=None)
@given(steps=steps(), ordered=st.booleans())
def test_whatever_happens_the_sums_are_right_and_the_order_holds(steps, ordered):
    box = Outbox(window=3 * SIZE)
    box.ordered = ordered
    ENDED.clear()
    waiting, flying, pages, closed, left = Counter(), defaultdict(list), Counter(), set(), 0
    for what, number in steps:
        if what == "add" and number not in closed:
            add(box, number, pages[number])
            pages[number] += 1
            waiting[number] += SIZE
        elif what == "finish" and number not in closed:
            finish(box, number)
            closed.add(number)
        elif what == "drop":
            left += waiting[number] // SIZE
            box.drop(generation(number))
            waiting[number] = 0
        elif what == "taken":
            page = flying[number].pop() if flying[number] else 0
            left += box.taken(generation(number), page, SIZE)
        elif what == "next" and (item := box.next()) is not None:
            which = item.generation.counter
            if item.body is None:
                assert not waiting[which]
                assert ordered or not flying[which]
            else:
                waiting[which] -= SIZE
                flying[which].append(item.message.first_page)
        assert (box.waiting, box.flying) == (waiting.total(), SIZE * sum(map(len, flying.values())))
        assert len(ENDED) == left
        assert box.flying <= 3 * SIZE
    box.clear()
    assert len(ENDED) == len(set(ENDED)) == pages.total()


def test_a_loan_ends_when_its_frame_is_taken_and_not_before():
    box = Outbox()
    for page in range(3):
        add(box, 1, page)
    drain(box)
    assert ENDED == []
    assert box.taken(generation(1), 1, SIZE)
    assert ENDED == [(1, 1)]
    assert not box.taken(generation(1), 1, SIZE)
    box.clear()
    assert sorted(ENDED) == [(1, 0), (1, 1), (1, 2)]


def test_idle_time_is_no_slowness():
    rate = Rate()
    for start in (0.0, 100.0):
        rate.sent(start)
        rate.taken(start + 1.0, LEAST_BYTES, idle=False)
        assert rate.taken(start + 2.0, LEAST_BYTES, idle=True)
        assert rate.bytes_per_second == LEAST_BYTES


def test_a_small_message_measures_nothing():
    rate = Rate()
    rate.sent(0.0)
    assert not rate.taken(1.0, LEAST_BYTES - 1, idle=True)
    assert rate.bytes_per_second is None


def test_a_link_that_is_never_idle_is_measured_too_and_new_samples_weigh_little():
    rate = Rate()
    rate.sent(0.0)
    assert rate.taken(1.0, PERIOD_BYTES, idle=False)
    assert rate.taken(3.0, PERIOD_BYTES, idle=False)
    assert rate.bytes_per_second == pytest.approx(PERIOD_BYTES * (1 - WEIGHT / 2))
