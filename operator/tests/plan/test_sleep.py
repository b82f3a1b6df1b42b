"""Scale to zero: asleep after so long without a request, awake with the first one; unknown changes nothing."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.plan.facts import Answer, RoleUse, Verdict
from tandem_operator.plan.sleep import SleepCase, choose_sleep
from tests.plan.examples import NOW, history, observed

AFTER_S = 60
QUIET = {"arrival_rate": 0.0, "request_rate": 0.0, "prefill": RoleUse(0.0), "decode": RoleUse(0.0)}
BUSY = {"arrival_rate": 0.2, "request_rate": 0.2}
BLIND = Verdict(Answer.NO, "PrometheusUnreachable", "no answer")


def case_of(windows=None, *, asleep=False, since=None, held=0.0, running=0.0, **changes):
    seen = observed(history=history(14, **QUIET) if windows is None else windows, **changes)
    return SleepCase(seen, AFTER_S, asleep, since, held, running)


def late(*, busy_from):
    """Windows of 5 s steps, the newest `busy_from` of them with traffic."""
    quiet, busy = history(14, **QUIET), history(14, **BUSY)
    return (*quiet[: 14 - busy_from], *busy[14 - busy_from :])


@pytest.mark.parametrize(
    ("case", "asleep"),
    [
        pytest.param(case_of(), True, id="idle for long enough"),
        pytest.param(case_of(history(4, **QUIET)), None, id="not yet"),
        pytest.param(case_of(late(busy_from=1)), None, id="a request came just now"),
        pytest.param(case_of(running=1.0), None, id="an answer is still being written"),
        pytest.param(case_of(running=None), None, id="load not known"),
        pytest.param(case_of(held=1.0), None, id="a request waits"),
        pytest.param(case_of(metrics=BLIND), None, id="no metrics"),
        pytest.param(case_of(since=NOW - timedelta(seconds=AFTER_S - 1)), None, id="woke a moment ago"),
        pytest.param(case_of(since=NOW - timedelta(seconds=AFTER_S + 1)), True, id="woke long ago"),
        pytest.param(case_of(history(14, **BUSY)), None, id="busy"),
        pytest.param(case_of(asleep=True, since=NOW - timedelta(hours=1)), None, id="nothing comes"),
        pytest.param(case_of(asleep=True, since=NOW - timedelta(hours=1), held=2.0), False, id="a request is held"),
        pytest.param(case_of(late(busy_from=1), asleep=True, since=NOW - timedelta(hours=1)), False, id="one came"),
        pytest.param(case_of(late(busy_from=1), asleep=True, since=NOW - timedelta(seconds=9)), None, id="from before"),
        pytest.param(case_of(asleep=True, held=2.0, metrics=BLIND), None, id="held once, and now no metrics"),
        pytest.param(case_of(asleep=True, held=None), None, id="not known whether one is held"),
    ],
)
def test_when_it_turns(case, asleep):
    found = choose_sleep(case, NOW)
    assert (None if found is None else found.asleep) is asleep
    if found:
        assert any(c.isdigit() for c in found.message), "a number that can be checked"


@given(
    st.booleans(),
    st.one_of(st.none(), st.floats(0, 5)),
    st.one_of(st.none(), st.floats(0, 5)),
    st.integers(0, 14),
    st.integers(0, 200),
)
def test_it_never_sleeps_with_work_and_never_turns_back_at_once(asleep, held, running, busy, ago):
    case = case_of(late(busy_from=busy), asleep=asleep, since=NOW - timedelta(seconds=ago), held=held, running=running)
    found = choose_sleep(case, NOW)
    if found is None:
        return
    assert found.asleep is not asleep
    if found.asleep:
        assert not held
        assert running == 0
        assert busy == 0
    after = replace(case, asleep=found.asleep, since=NOW)
    again = choose_sleep(after, NOW)
    assert again is None or (not again.asleep and held)
