"""The demand to provide for: a forecast, and what it has underestimated before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.plan.forecast import demand, forecast, margin
from tandem_operator.plan.outlook import outlook
from tandem_operator.plan.predict import Load
from tests.plan.test_forecast import windows

LOAD = Load(5.0, 1000.0, 600.0, 100.0)
CALM, BURSTS = [5.0] * 60, [5.0] * 16 + [20.0] * 4 + [5.0] * 27 + [20.0] * 4  # of no period


@pytest.mark.parametrize(
    ("errors", "share", "found"),
    [
        pytest.param([], 0.99, 0.0, id="nothing is known of errors"),
        pytest.param([(1, 1), (2, 1), (3, 1), (9, 1)], 0.7, 3.0, id="a quarter of the work may come in worse moments"),
        pytest.param([(1, 10), (9, 1)], 0.9, 1.0, id="weighted by the work that came"),
        pytest.param([(-4, 1), (-2, 1)], 0.99, 0.0, id="too much was foreseen: no margin, and no discount"),
    ],
)
def test_margin(errors, share, found):
    assert margin(errors, share) == found


@pytest.mark.parametrize(
    ("rates", "rate"),
    [
        pytest.param(CALM, 5.0, id="calm: what is"),
        pytest.param([*BURSTS, *[5.0] * 8], 20.0, id="bursts were seen: the next one is provided for"),
        pytest.param([*BURSTS], 20.0, id="in a burst: no more than was ever seen"),
    ],
)
def test_outlook_of_the_rate(rates, rate):
    load = LOAD._replace(arrival_rate=rates[-1])
    assert outlook(windows(rates), load, 60.0, 99).arrival_rate == pytest.approx(rate, rel=0.05)


def test_work_is_kept_where_the_rate_is_raised():
    """Prefix hits and lengths stay what they are; rates of tokens are those of the windows."""
    told = outlook(windows([*BURSTS, *[5.0] * 8]), LOAD, 60.0, 99)
    assert told.arrival_rate * told.computed_tokens == pytest.approx(20 * 600, rel=0.05)
    assert told.arrival_rate * told.output_tokens == pytest.approx(20 * 100, rel=0.05)


def test_a_short_history_says_nothing():
    assert outlook(windows([5.0, 20.0, 5.0]), LOAD, 60.0, 99) == LOAD


@given(st.lists(st.floats(0, 1e3), min_size=8, max_size=60), st.floats(15, 600), st.sampled_from([50, 90, 99]))
def test_no_more_than_was_seen_or_is_foreseen(rates, horizon_s, percentile):
    history = windows(rates)
    found = demand(rates, history, horizon_s, percentile / 100)
    assert found is not None
    assert 0 <= found <= max(*rates, forecast(history, horizon_s).rate)
