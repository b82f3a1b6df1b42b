"""What is to come: the method that was right before speaks; bursts are told from trends."""

from datetime import timedelta
from math import cos, pi

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.plan.facts import Window
from tandem_operator.plan.forecast import burstiness, dispersion, forecast, period_of
from tests.plan.examples import NOW


def windows(rates, seconds=15, step=15, prompt=1000.0, output=100.0):
    start = NOW - timedelta(seconds=step * (len(rates) - 1))
    return tuple(
        Window(start + timedelta(seconds=step * n), seconds, rate, rate, prompt, output) for n, rate in enumerate(rates)
    )


FLAT = [5.0] * 60
RAMP = [1 + 0.1 * n for n in range(60)]
WAVES = [5 + 4 * cos(2 * pi * n / 20) for n in range(90)]


@pytest.mark.parametrize(
    ("rates", "horizon_s", "method", "rate"),
    [
        pytest.param(FLAT, 120, "constant", 5.0, id="flat: the simplest of equals"),
        pytest.param(RAMP, 120, "linear", 6.9 + 0.8, id="a ramp goes on for 8 windows"),
        pytest.param(WAVES, 150, "seasonal", 5 + 4 * cos(2 * pi * 99 / 20), id="half a wave ahead"),
        pytest.param([3.0], 120, "constant", 3.0, id="one window: what is"),
        pytest.param([None, 2.0, None], 120, "constant", 2.0, id="an unknown one repeats the last"),
    ],
)
def test_forecast(rates, horizon_s, method, rate):
    told = forecast(windows(rates), horizon_s)
    assert (told.method, told.rate) == (method, pytest.approx(rate, rel=0.15))


@pytest.mark.parametrize("history", [(), windows([None, None])], ids=["no window", "no window knows"])
def test_nothing_is_told_of_nothing(history):
    assert forecast(history, 120) is None


def test_spread_is_the_past_error():
    assert forecast(windows([5.0] * 30 + [7.0] * 30), 15).spread == pytest.approx((2.0**2 / 59) ** 0.5)
    assert forecast(windows(FLAT), 15).spread == 0.0


def test_lengths_have_their_own_method():
    history = tuple(
        Window(w.at, 15, w.arrival_rate, w.request_rate, 100.0 + 10 * n, 50.0)
        for n, w in enumerate(windows([5.0] * 60))
    )
    told = forecast(history, 150)
    assert (told.method, told.prompt_tokens, told.output_tokens) == ("constant", pytest.approx(790, rel=0.1), 50.0)


@pytest.mark.parametrize(
    ("values", "period"),
    [
        pytest.param(FLAT, None, id="flat"),
        pytest.param(RAMP, None, id="a trend is no season"),
        pytest.param(WAVES, 20, id="waves"),
        pytest.param(WAVES[:30], None, id="one and a half: not seen twice"),
    ],
)
def test_period(values, period):
    assert period_of(values) == period


@pytest.mark.parametrize(
    ("counts", "index"),
    [
        pytest.param([4, 4, 4, 4], 0.0, id="clockwork"),
        pytest.param([2, 6, 2, 6], 2.0, id="differences of 4: 16/2 = 8, over 4"),
        pytest.param([1, 2, 3, 4, 5], 1 / 6, id="a trend is hardly a burst: 1/2 over 3"),
        pytest.param([4, 4, 4], None, id="too few"),
        pytest.param([0, 0, 0, 0], None, id="nothing arrived"),
    ],
)
def test_dispersion(counts, index):
    assert dispersion(counts) == (None if index is None else pytest.approx(index))


def test_burstiness_takes_windows_that_do_not_overlap():
    """Windows of 30 s every 15 s: every other one counts, the newest among them."""
    rates = [0.1, 9.0, 0.3, 9.0, 0.1, 9.0, 0.3]
    assert burstiness(windows(rates, seconds=30)) == pytest.approx(dispersion([3.0, 9.0, 3.0, 9.0]))


@given(st.lists(st.one_of(st.none(), st.floats(0, 1e4)), max_size=60), st.floats(0, 1e4))
def test_a_forecast_is_a_demand(rates, horizon_s):
    told = forecast(windows(rates), horizon_s)
    assert (told is None) == all(r is None for r in rates)
    assert told is None or (told.rate >= 0 and told.spread >= 0 and told.prompt_tokens >= 1)
