"""Loads that may come: what windows brought and forecasts say, weighted by requests, in a few bins, without luck."""

from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tandem_operator.plan.desk import Desk
from tandem_operator.plan.predict import Load
from tandem_operator.plan.queueing import Line
from tandem_operator.plan.scenarios import (
    binned,
    came_in,
    certain,
    evened,
    foreseen,
    output_work,
    prompt_work,
    seen,
    without_luck,
)
from tests.plan.test_forecast import windows
from tests.plan.test_search import MODEL, SMOL, limits_of

LOAD = Load(5.0, 1000.0, 600.0, 100.0, arrival_cv2=1.0, prompt_cv2=1.0, lasts_s=30.0)
CALM, BURSTS = [5.0] * 40, [5.0] * 16 + [20.0] * 4 + [5.0] * 27 + [20.0] * 4 + [5.0] * 9
rates = st.lists(st.floats(0.1, 100), min_size=2, max_size=60)


def weighted(rates, load=LOAD):
    return [(rate, load._replace(arrival_rate=rate)) for rate in rates]


def brought(rates):
    return [came_in(window, LOAD) for window in windows(rates)]


@given(rates)
def test_bins_keep_the_requests_and_their_work(found):
    loads = weighted(found)
    few = binned(loads, prompt_work, times=0.0)
    assert sum(share for share, _ in few) == pytest.approx(1)
    mean = sum(rate * prompt_work(load) for rate, load in loads) / sum(found)
    assert sum(share * prompt_work(load) for share, load in few) == pytest.approx(mean)
    works = [prompt_work(load) for _, load in few]
    assert all(a <= b * (1 + 1e-9) for a, b in pairwise(works))
    assert all(0 < load.usual <= 1 for _, load in few)


@pytest.mark.parametrize(
    ("came", "spread"),
    [
        # 30 s of 10 requests/s: 300 requests of Ca² + Cs² = 2 vary by 8 % of their mean.
        pytest.param([9.5, 10.5] * 20, 0.0, id="5 %: chance alone"),
        pytest.param([5.0, 15.0] * 20, 4.2, id="50 %: what chance does is taken off"),
        pytest.param([10.0] * 40, 0.0, id="none"),
    ],
)
def test_what_is_chance_is_no_load(came, spread):
    mean = sum(rate * rate for rate in came) / sum(came)
    share = without_luck([(prompt_work(load), rate, load) for rate, load in weighted(came)], mean * 600, 1.0)
    assert share * (max(came) - min(came)) / 2 == pytest.approx(spread, abs=0.7)


@pytest.mark.parametrize(
    ("came", "most"),
    [
        pytest.param(CALM, 5.0, id="calm: what is"),
        pytest.param(BURSTS, 19.0, id="bursts that were not foreseen may come again"),
    ],
)
def test_a_forecast_may_be_as_wrong_as_it_was(came, most):
    found = foreseen(windows(came), brought(came), LOAD._replace(arrival_rate=came[-1]), 60.0)
    assert found.prefill[-1][1].arrival_rate == pytest.approx(most, rel=0.1)


def test_idle_windows_bring_nothing_and_are_no_proof():
    idle = LOAD._replace(arrival_rate=0.0)
    assert seen(brought([0.0] * 20), idle) == certain(idle)
    assert seen(brought([0.0] * 20 + [5.0] * 20), LOAD).prefill[-1][1].arrival_rate == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("cv2", "busy", "found"),
    [
        pytest.param(None, 0.5, None, id="not measured"),
        pytest.param(0.5, 0.5, 0.5, id="even already"),
        pytest.param(9.0, 1.0, 1.0, id="a busy prefill sends one after another"),
        pytest.param(9.0, 0.0, 9.0, id="an idle one sends them as they come"),
    ],
)
def test_prefill_evens_out_what_decode_gets(cv2, busy, found):
    assert evened(LOAD._replace(arrival_cv2=cv2), busy).arrival_cv2 == found


@given(st.floats(0.05, 3), st.floats(0.05, 1), st.floats(1, 300), st.integers(1, 16), st.floats(0, 60))
def test_a_moment_is_no_worse_than_the_same_for_ever(rho, usual, lasts_s, servers, seconds):
    line = Line(servers, 2.0 * servers, 1.5, 0.5)
    assume(rho * usual < 1)
    passing = line.passing(rho, usual, lasts_s)
    assert 0 <= passing.within(seconds) <= 1
    if rho < 1:
        assert passing.within(seconds) >= line.steady(rho).within(seconds) - 1e-9
    assert line.passing(rho, usual, 2 * lasts_s).within(seconds) <= passing.within(seconds) + 1e-9
    if 1.1 * rho * usual < 1:
        assert line.passing(1.1 * rho, usual, lasts_s).within(seconds) <= passing.within(seconds) + 1e-9


def test_an_overload_that_passes_is_waited_for():
    """40 % too much for 30 s: 12 s pile up, and half of those who come find less than 6 s."""
    assert Line(4, 1000.0, 1.0, 1.0).passing(1.4, 0.5, 30.0).within(6.0) == pytest.approx(0.5, abs=0.05)


@given(rates, st.integers(1, 7))
def test_the_mean_over_loads_lies_between_them_and_more_workers_are_no_worse(found, workers):
    limits = limits_of()
    demand = seen(brought(found), LOAD)
    desk = Desk(limits, SMOL, LOAD, MODEL, limits.slo, (demand,))
    each = [Desk(limits, SMOL, load, MODEL, limits.slo) for _, load in demand.prefill]
    crew = (workers, *[0] * (len(limits.pools) - 1))
    kinds = [one.prefill(crew).kind for one in each]
    assert min(kinds) - 1e-9 <= desk.prefill(crew).kind <= max(kinds) + 1e-9
    more = (workers + 1, *crew[1:])
    assert desk.prefill(more).kind >= desk.prefill(crew).kind - 1e-9
    assert output_work(demand.decode[-1][1]) >= output_work(demand.decode[0][1]) * (1 - 1e-9)
