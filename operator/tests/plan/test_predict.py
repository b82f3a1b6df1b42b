"""The formulas against a discrete-event simulation of the same costs."""

import pytest

from tandem_operator.plan.calibrate import Fit
from tandem_operator.plan.facts import Role
from tandem_operator.plan.predict import Crew, Load, Model, predict
from tandem_operator.plan.roofline import Prior
from tandem_operator.simulate.cluster import Cluster, percentile
from tandem_operator.simulate.worker import SimWorker, Truth
from tandem_operator.simulate.workload import Phase, poisson
from tests.plan.examples import SLO

# A prior in the truth's own terms: 1 ms a prompt token, 30 ms + 10 ms·B a step.
PRIOR = Prior(0.03, 0.001, 0.0, 0.0, 0.0, 1e9)
PREFILL = Fit((0.0, 1.0, 1.0), ((1e-9,) * 3,) * 3, 9)
DECODE = Fit((1.0, 10.0, 1.0), ((1e-9,) * 3,) * 3, 9)
MODEL = Model(PREFILL, DECODE, 64)


def forecast(prefill, decode, rps, isl, osl, waiting=0.0):
    load = Load(rps, isl, isl, osl, waiting)
    return predict([Crew(PRIOR, prefill)], [Crew(PRIOR, decode)], load, MODEL, SLO)


def simulated(prefill, decode, rps, isl, osl):
    """(TTFT p90, TPOT p90) in ms of a long run, the first minute left out."""
    cluster = Cluster(poisson([Phase(isl, osl, rps, 3000)], seed=3))
    truth = Truth(0.001, 0.03, 0.01)
    for role, count in ((Role.PREFILL, prefill), (Role.DECODE, decode)):
        cluster.workers += [SimWorker(f"{role}-{n}", role, role, truth, 64) for n in range(count)]
    cluster.run_until(3000)
    done = [r for r in cluster.finished if r.arrived > 60]
    return tuple(
        1000 * percentile([v for r in done if (v := get(r)) is not None], 90)
        for get in (lambda r: r.ttft_s, lambda r: r.tpot_s)
    )


@pytest.mark.parametrize(
    ("prefill", "decode", "rps", "isl", "osl"),
    [
        pytest.param(1, 2, 1.2, 512, 8, id="one prefill worker at 61 %"),
        pytest.param(2, 1, 2.5, 512, 8, id="two prefill workers at 64 %"),
        pytest.param(4, 2, 6.0, 512, 8, id="four prefill workers at 77 %"),
        pytest.param(1, 1, 0.5, 32, 100, id="one decode worker, calm"),
        pytest.param(1, 2, 1.2, 32, 100, id="two decode workers, busy"),
    ],
)
def test_forecast_agrees_with_the_simulation(prefill, decode, rps, isl, osl):
    ttft_ms, tpot_ms = simulated(prefill, decode, rps, isl, osl)
    found = forecast(prefill, decode, rps, isl, osl)
    # Never much too kind; sterner is allowed, since lengths vary more than here and prefill smooths what decode gets.
    assert 0.85 <= found.prefill.latency_ms / ttft_ms <= 1.5
    assert 0.85 <= found.decode.latency_ms / tpot_ms <= 1.5


@pytest.mark.parametrize(
    ("prefill", "decode", "rps", "isl", "osl", "ttft_is_bounded", "tpot_is_bounded"),
    [
        pytest.param(1, 2, 2.5, 512, 8, False, True, id="prefill at 128 % diverges"),
        pytest.param(2, 1, 2.5, 512, 8, True, True, id="two prefill workers carry it"),
        pytest.param(2, 1, 1.2, 32, 100, False, False, id="decode diverges, and tickets hold TTFT back"),
        pytest.param(0, 1, 0.5, 32, 100, False, True, id="nobody prefills"),
        pytest.param(1, 0, 1.0, 32, 100, False, False, id="nobody decodes"),
        pytest.param(1, 0, 1.0, 32, 1, True, True, id="one token needs no decode worker"),
        pytest.param(1, 1, 0.0, 32, 100, True, True, id="no load"),
    ],
)
def test_what_diverges(prefill, decode, rps, isl, osl, ttft_is_bounded, tpot_is_bounded):
    found = forecast(prefill, decode, rps, isl, osl)
    assert (found.prefill.latency_ms is not None) is ttft_is_bounded
    assert (found.decode.latency_ms is not None) is tpot_is_bounded
    if not (ttft_is_bounded and tpot_is_bounded):
        assert found.attainment == 0


@pytest.mark.parametrize(
    ("prefill", "drain_s"),
    [pytest.param(1, None, id="never"), pytest.param(2, 10_000 / (2000 - 1280), id="with the spare capacity")],
)
def test_backlog_is_time_and_not_infeasibility(prefill, drain_s):
    found = forecast(prefill, 2, 2.5, 512, 8, waiting=10_000)
    assert found.drain_s == (None if drain_s is None else pytest.approx(drain_s, rel=0.01))
    assert found.attainment == forecast(prefill, 2, 2.5, 512, 8).attainment


def test_a_slow_link_is_priced_in():
    load = Load(2.5, 512, 512, 8)
    slow = Prior(0.03, 0.001, 0.0, 0.0, 0.004, 1e9)  # 4 ms to move what takes 1 ms to compute
    found = predict([Crew(slow, 2)], [Crew(PRIOR, 1)], load, MODEL, SLO)
    assert found.prefill.utilisation > 2


def test_a_faster_device_in_the_same_role_takes_more():
    load = Load(3.5, 512, 512, 8)
    fast = Prior(0.03, 0.0004, 0.0, 0.0, 0.0, 1e9)
    mixed = predict([Crew(PRIOR, 1), Crew(fast, 1)], [Crew(PRIOR, 1)], load, MODEL, SLO)
    equal = predict([Crew(PRIOR, 2)], [Crew(PRIOR, 1)], load, MODEL, SLO)
    assert mixed.prefill.utilisation == pytest.approx(3.5 * 0.512 / 3.5, rel=0.01)
    assert mixed.attainment > equal.attainment
