"""Dirty keys: one pass at a time, none lost, failures slow down."""

from __future__ import annotations

import asyncio

import pytest

from tandem_operator.loop.queue import Queue, backoff_s, work
from tandem_operator.loop.refs import Done, Failed, Ref, Waiting

A, B = Ref("ns", "a"), Ref("ns", "b")


@pytest.mark.parametrize(("failures", "delay"), [(1, 1), (2, 2), (3, 4), (6, 32), (7, 60), (500, 60)])
def test_backoff(failures, delay):
    assert backoff_s(failures) == delay


async def test_a_key_is_taken_once_however_often_it_was_marked():
    queue = Queue()
    for ref in (A, A, B, A):
        queue.mark(ref)
    assert [await queue.take(), await queue.take()] == [A, B]
    assert not queue._asked


async def test_a_key_that_is_marked_while_it_runs_runs_again_and_not_beside_itself():
    queue = Queue()
    queue.mark(A)
    await queue.take()
    queue.mark(A)
    assert not queue._asked
    queue.finish(A, Done())
    assert await asyncio.wait_for(queue.take(), 1) == A


@pytest.mark.parametrize(
    ("marks", "taken"),
    [
        pytest.param("ab AB", "AB", id="asked for: once, and as such"),
        pytest.param("abc X", "Xabc", id="an edit is not behind the looks at all"),
        pytest.param("ab XYZUV", "XYZaUVb", id="none waits for ever"),
        pytest.param("AB ab", "AB", id="time asks for no more"),
    ],
)
async def test_what_is_asked_for_goes_first(marks, taken):
    queue = Queue()
    for name in marks.replace(" ", ""):
        mark = queue.mark if name.isupper() else queue.mark_routine
        mark(Ref("ns", name.lower()))
    found = [(await queue.take()).name for _ in taken]
    assert found == list(taken.lower())
    assert not queue._asked
    assert not queue._routine


async def test_a_worker_for_what_is_asked_for_leaves_the_rest():
    queue = Queue()
    queue.mark_routine(A)
    waiting = asyncio.create_task(queue.take(routine=False))
    assert await queue.take() == A
    queue.mark_routine(A)
    queue.finish(A, Done())
    queue.mark(B)
    assert await asyncio.wait_for(waiting, 5) == B
    assert await asyncio.wait_for(queue.take(), 5) == A, "time asked for it during its pass"


async def test_waiting_comes_back_and_the_sooner_time_counts():
    queue = Queue(lambda: 0.0)
    queue.mark(A)
    await queue.take()
    queue.finish(A, Waiting("X", "x", 3600))
    queue.mark_later(A, 0.01)
    queue.mark_later(A, 3600)
    assert await asyncio.wait_for(queue.take(), 5) == A


@pytest.mark.parametrize("first", ["waiting", "taken"])
async def test_a_pass_that_comes_or_has_begun_answers_for_what_was_to_come_later(first):
    queue = Queue(lambda: 0.0)
    if first == "waiting":
        queue.mark(A)
    queue.mark_later(A, 0.01)
    queue.mark(A)
    await queue.take()
    queue.finish(A, Done())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.take(), 0.1)


async def test_what_settles_during_a_pass_gets_one_more():
    queue = Queue(lambda: 0.0)
    queue.mark(A)
    await queue.take()
    queue.mark_later(A, 0.01)
    queue.finish(A, Done())
    assert await asyncio.wait_for(queue.take(), 5) == A


async def test_a_worker_outlives_a_pass_that_raises_or_hangs():
    queue, seen = Queue(lambda: 0.0), []
    done = asyncio.Event()

    async def run(ref):
        seen.append(ref)
        if ref == A and len(seen) == 1:
            raise ValueError("boom")
        if ref == A:
            await asyncio.sleep(3600)
        done.set()
        return Done()

    worker = asyncio.create_task(work(queue, run, deadline_s=0.05))
    queue.mark(A)
    queue.mark(B)
    await asyncio.wait_for(done.wait(), 5)
    worker.cancel()
    with pytest.raises(asyncio.CancelledError):
        await worker
    assert seen[:2] == [A, B]
    assert queue.oldest_pass_s() == 0


def test_what_is_the_same_is_said_once(caplog):
    queue = Queue()
    with caplog.at_level("INFO"):
        for outcome in (Done(), Failed("X", "x"), Failed("X", "x"), Done(), Done()):
            queue.say(A, outcome)
    assert [record.getMessage() for record in caplog.records] == ["ns/a: X: x", "ns/a: as planned"]


@pytest.mark.parametrize("steps", range(6))
async def test_a_worker_that_is_cancelled_as_its_pass_ends_ends(steps):
    """Else the operator that lost its Lease would wait for it for ever, well by its probes, and never begin anew."""
    queue, over = Queue(), asyncio.Event()

    async def run(ref):
        await over.wait()
        return Done()

    queue.mark(A)
    worker = asyncio.create_task(work(queue, run, deadline_s=60))
    await asyncio.sleep(0.01)
    over.set()
    for _ in range(steps):
        await asyncio.sleep(0)
    worker.cancel()
    await asyncio.wait([worker], timeout=5)
    assert worker.cancelled()
