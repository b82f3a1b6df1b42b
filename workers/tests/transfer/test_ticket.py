"""The ticket's table: who may do what in which state, and that no way leaves pages behind."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_worker.transfer.base import Fence
from tandem_worker.transfer.ticket import QUARANTINE_S, TABLE, Act, Event, State, Ticket, due, may, step
from tandem_worker.transfer.wire import Generation

NEW = Ticket("r", Generation(1, 1), ends_at=120.0, lease_s=30.0)


def run(*events: Event, fence: Fence = Fence.CONNECTION, pages: int = 3):
    """The ticket after these events, all pages arriving with the first chunk, and all acts."""
    ticket = Ticket("r", Generation(1, 1), ends_at=120.0, lease_s=30.0, fence=fence).with_pages(1, pages)
    acts: list[Act] = []
    for event in events:
        ticket, done = step(ticket, event, now=10.0)
        if Act.WRITE in done:
            ticket = ticket.with_arrived(1, pages - 1)
        acts += done
    return ticket, acts


E = Event


@pytest.mark.parametrize(
    ("events", "state", "acts"),
    [
        pytest.param((E.GRANT, E.CHUNK, E.FIRST_TOKEN, E.COMMIT), State.COMMITTED,
                     [Act.RENEW, Act.WRITE, Act.RENEW, Act.RENEW, Act.EMIT, Act.COMMIT], id="the usual way"),
        pytest.param((E.GRANT, E.WAITS, E.WAITS), State.OPEN, [Act.RENEW] * 3, id="others are computed first"),
        pytest.param((E.WAITS,), State.ASKED, [], id="no sign of life renews what was not promised"),
        pytest.param((E.GRANT, E.FIRST_TOKEN, E.WAITS), State.FIRST, [Act.RENEW, Act.RENEW, Act.EMIT],
                     id="who has sampled waits for nobody"),
        pytest.param((E.CANCEL,), State.ENDED, [Act.TELL_WRITER], id="cancelled before a promise"),
        pytest.param((E.GRANT, E.CANCEL), State.QUARANTINED, [Act.RENEW, Act.TELL_WRITER, Act.QUARANTINE],
                     id="cancelled: quarantine until the writer's word"),
        pytest.param((E.GRANT, E.CANCEL, E.QUIET), State.ENDED,
                     [Act.RENEW, Act.TELL_WRITER, Act.QUARANTINE, Act.UNQUARANTINE], id="the writer's word ends it"),
        pytest.param((E.GRANT, E.CANCEL, E.CHUNK, E.FIRST_TOKEN, E.COMMIT), State.QUARANTINED,
                     [Act.RENEW, Act.TELL_WRITER, Act.QUARANTINE], id="late pages are not written"),
        pytest.param((E.GRANT, E.FAILED), State.ENDED, [Act.RENEW, Act.RELEASE, Act.TELL_CLIENT],
                     id="failed is the writer's word"),
        pytest.param((E.GRANT, E.BROKEN), State.QUARANTINED,
                     [Act.RENEW, Act.TELL_WRITER, Act.QUARANTINE, Act.TELL_CLIENT], id="lease over"),
        pytest.param((E.GRANT, E.FIRST_TOKEN, E.COMMIT), State.QUARANTINED,
                     [Act.RENEW, Act.RENEW, Act.EMIT, Act.TELL_WRITER, Act.QUARANTINE, Act.TELL_CLIENT],
                     id="commit without its pages"),
        pytest.param((E.GRANT, E.CHUNK, E.COMMIT), State.QUARANTINED,
                     [Act.RENEW, Act.WRITE, Act.RENEW, Act.TELL_WRITER, Act.QUARANTINE, Act.TELL_CLIENT],
                     id="commit without a first token"),
        pytest.param((E.GRANT, E.CLOSED), State.ENDED, [Act.RENEW, Act.RELEASE, Act.TELL_CLIENT],
                     id="tcp: the connection's end is the fence"),
        pytest.param((E.GRANT, E.CANCEL, E.OVERDUE), State.CUT,
                     [Act.RENEW, Act.TELL_WRITER, Act.QUARANTINE, Act.CUT_OFF], id="silent for too long: cut off"),
        pytest.param((E.GRANT, E.CANCEL, E.OVERDUE, E.CLOSED), State.ENDED,
                     [Act.RENEW, Act.TELL_WRITER, Act.QUARANTINE, Act.CUT_OFF, Act.UNQUARANTINE],
                     id="cut off: the connection's end frees"),
        pytest.param((E.BROKEN,), State.ENDED, [Act.TELL_WRITER, Act.TELL_CLIENT], id="never asked for a ticket"),
        pytest.param((E.CHUNK, E.FIRST_TOKEN, E.COMMIT), State.ASKED, [], id="nothing before the promise"),
    ],
)  # fmt: skip
def test_ways_of_a_ticket(events, state, acts):
    ticket, done = run(*events)
    assert (ticket.state, done) == (state, acts)


@pytest.mark.parametrize(
    ("fence", "event", "state"),
    [
        (Fence.MESSAGE, E.CLOSED, State.QUARANTINED),
        (Fence.MESSAGE, E.REVOKED, State.QUARANTINED),
        (Fence.MESSAGE, E.QUIET, State.ENDED),
        (Fence.CONNECTION, E.CLOSED, State.ENDED),
        (Fence.CONNECTION, E.REVOKED, State.ENDED),
        (Fence.CONNECTION, E.QUIET, State.ENDED),
        (Fence.KEY, E.CLOSED, State.QUARANTINED),
        (Fence.KEY, E.REVOKED, State.ENDED),
        (Fence.KEY, E.QUIET, State.ENDED),
    ],
)
def test_what_ends_a_quarantine(fence, event, state):
    ticket, _ = run(E.GRANT, E.CANCEL, event, fence=fence)
    assert ticket.state is state


@pytest.mark.parametrize("fence", Fence)
def test_time_cuts_a_silent_writer_off_but_frees_nothing(fence):
    ticket, acts = run(E.GRANT, E.CANCEL, E.OVERDUE, fence=fence)
    assert (ticket.state, Act.UNQUARANTINE in acts) == (State.CUT, False)
    assert run(E.GRANT, E.CANCEL, E.OVERDUE, E.QUIET, fence=fence)[0].state is State.ENDED


def test_a_one_sided_writer_may_still_write_after_its_connection():
    ticket, acts = run(E.GRANT, E.CLOSED, fence=Fence.KEY)
    assert ticket.state is State.QUARANTINED
    assert Act.RELEASE not in acts


@pytest.mark.parametrize(
    ("events", "at", "event"),
    [
        pytest.param((), 119.9, None, id="asked, in time"),
        pytest.param((), 120.0, E.BROKEN, id="asked, deadline"),
        pytest.param((E.GRANT,), 39.9, None, id="lease from the grant at 10"),
        pytest.param((E.GRANT,), 40.0, E.BROKEN, id="lease over"),
        pytest.param((E.GRANT, E.CANCEL), 10.0 + QUARANTINE_S - 0.1, None, id="quarantined, in time"),
        pytest.param((E.GRANT, E.CANCEL), 10.0 + QUARANTINE_S, E.OVERDUE, id="quarantined for too long"),
        pytest.param((E.GRANT, E.CANCEL, E.OVERDUE), 1e9, None, id="cut off: time frees nothing"),
        pytest.param((E.CANCEL,), 1e9, None, id="ended"),
    ],
)
def test_when_time_speaks(events, at, event):
    ticket, _ = run(*events)
    assert due(ticket, at) is event


def test_each_chunk_renews_the_lease():
    ticket, _ = step(NEW.with_pages(0, 9), E.GRANT, now=0.0)
    for now in (20.0, 40.0, 60.0):
        ticket, _ = step(ticket, E.CHUNK, now)
        assert ticket.ends_at == now + 30.0


@given(fence=st.sampled_from(list(Fence)), events=st.lists(st.sampled_from(list(Event)), max_size=12))
def test_pages_are_taken_once_and_given_back_once(fence, events):
    """Whatever happens: after the grant exactly one of commit, release, quarantine; unquarantine only after that."""
    ticket, acts = run(*events, fence=fence)
    ends = [act for act in acts if act in {Act.COMMIT, Act.RELEASE, Act.QUARANTINE}]
    assert len(ends) <= 1
    assert acts.count(Act.UNQUARANTINE) <= acts.count(Act.QUARANTINE) <= 1
    assert acts.count(Act.TELL_CLIENT) <= 1
    if ticket.over and Act.RENEW in acts:  # there was a promise
        assert len(ends) == 1
    if ticket.state in {State.QUARANTINED, State.CUT}:
        assert ends == [Act.QUARANTINE]
        assert Act.UNQUARANTINE not in acts
    if ticket.state is State.ENDED and Act.QUARANTINE in acts:
        assert Act.UNQUARANTINE in acts


@pytest.mark.parametrize(("state", "event"), list(product([State.COMMITTED, State.ENDED], Event)))
def test_nothing_moves_an_ended_ticket(state, event):
    from dataclasses import replace

    ticket = replace(NEW, state=state)
    assert step(ticket, event, now=0.0) == (ticket, ())


@given(events=st.lists(st.sampled_from(list(Event)), max_size=12), last=st.sampled_from(list(Event)))
def test_what_the_table_lacks_is_refused_and_changes_nothing(events, last):
    ticket, _ = run(*events)
    after, acts = step(ticket, last, now=11.0)
    if not may(ticket, last):
        assert (after, acts) == (ticket, ())


def test_every_state_that_holds_something_is_bounded_or_ended_by_proof_alone():
    over = {State.COMMITTED, State.ENDED}
    assert set(TABLE.timers) == set(State) - over - {State.CUT}
    for state, timer in TABLE.timers.items():
        assert TABLE.find(state, timer.event) is not None
    ways_out = {event for (state, event), move in TABLE.moves.items() if state is State.CUT and move.then in over}
    assert ways_out == {Event.QUIET, Event.FAILED, Event.FENCED}
