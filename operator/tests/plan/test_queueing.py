"""The waiting formulas against simulations that share nothing with them (docs/reference/planner/decision.md)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.plan.predict import (
    Load,
    PromptCost,
    StepCost,
    batch_of,
    first_within,
    quantile_ms,
    queue_of,
    steps_within,
)
from tandem_operator.plan.queueing import delay_of, length_atoms
from tests.plan.queues import quantile, response_times, step_times

RATES = (0.5, 0.7, 0.85)
SHARES = (0.9, 0.95)


def ttft_s(servers, rho, arrival_cv2, length_cv2, share):
    """The planner's answer for prompts of one second."""
    load = Load(rho * servers, 1.0, 1.0, 1.0, 0.0, arrival_cv2, length_cv2)
    queue = queue_of([(servers, PromptCost(1.0, 0.0, 0.0))], load)
    atoms = length_atoms(length_cv2)
    return quantile_ms(lambda s: first_within(queue, atoms, s), share) / 1000


@pytest.mark.parametrize(
    ("servers", "arrival_cv2", "length_cv2", "tolerance"),
    [
        pytest.param(1, 0.3, 0.0, 0.12, id="one worker, even arrivals, fixed prompts"),
        pytest.param(1, 1.0, 0.5, 0.12, id="one worker, Poisson, prompts that vary"),
        pytest.param(1, 4.0, 0.5, 0.22, id="one worker, bursts"),
        pytest.param(4, 1.0, 0.0, 0.12, id="four workers, Poisson, fixed prompts"),
        pytest.param(4, 1.0, 1.5, 0.22, id="four workers, Poisson, prompts that vary much"),
        pytest.param(4, 4.0, 0.5, 0.22, id="four workers, bursts"),
        pytest.param(16, 0.3, 0.5, 0.12, id="sixteen workers, even arrivals"),
        pytest.param(16, 4.0, 0.5, 0.22, id="sixteen workers, bursts"),
    ],
)
def test_percentiles_of_ttft(servers, arrival_cv2, length_cv2, tolerance):
    for rho in RATES:
        seen = response_times(servers, rho, arrival_cv2, length_cv2, count=20_000)
        for share in SHARES:
            found = ttft_s(servers, rho, arrival_cv2, length_cv2, share)
            assert found == pytest.approx(quantile(seen, share), rel=tolerance), (rho, share)


def step_s(workers, rate, tokens, alone, slope, arrival_cv2, share):
    load = Load(rate, 1.0, 1.0, tokens + 1.0, 0.0, arrival_cv2)
    batch = batch_of([(workers, StepCost(alone, slope, 1e9))], load)
    return quantile_ms(lambda s: steps_within(batch, s), share) / 1000


@pytest.mark.parametrize(
    ("workers", "slope", "arrival_cv2", "tolerance"),
    [
        pytest.param(1, 0.001, 1.0, 0.05, id="one worker, weights dominate a step"),
        pytest.param(8, 0.001, 1.0, 0.08, id="eight workers"),
        pytest.param(2, 0.001, 4.0, 0.08, id="two workers, bursts"),
        pytest.param(1, 0.01, 1.0, 0.15, id="one worker, the batch dominates a step"),
        pytest.param(8, 0.01, 1.0, 0.15, id="eight workers, the batch dominates"),
        pytest.param(2, 0.01, 4.0, 0.22, id="two workers, bursts, the batch dominates"),
    ],
)
def test_percentiles_of_tpot(workers, slope, arrival_cv2, tolerance):
    for use in (0.3, 0.6):
        rate = 0.9 * use * workers / slope / 20 * (0.6 if slope == 0.001 else 1.0)
        seen = step_times(workers, rate, 20, 0.03, slope, arrival_cv2, count=3000)
        for share in SHARES:
            found = step_s(workers, rate, 20, 0.03, slope, arrival_cv2, share)
            assert found == pytest.approx(quantile(seen, share), rel=tolerance), (use, share)


@given(st.floats(0.01, 0.98), st.integers(1, 64), st.floats(0.05, 8), st.floats(0, 4))
def test_more_load_bursts_or_variation_never_wait_less(rho, servers, ca2, cs2):
    base = delay_of(rho, servers, servers, ca2, cs2)
    assert 0 <= base.waits <= 1
    for other in (
        delay_of(rho + 0.01, servers, servers, ca2, cs2),
        delay_of(rho, servers, servers, ca2 * 1.2, cs2),
        delay_of(rho, servers, servers, ca2, cs2 + 0.2),
    ):
        for seconds in (0.0, 0.5, 3.0):
            assert other.within(seconds) <= base.within(seconds) + 1e-12


@given(st.floats(0.05, 3.0))
def test_atoms_of_a_length_keep_its_mean(cv2):
    atoms = length_atoms(cv2)
    assert sum(p for _, p in atoms) == pytest.approx(1)
    assert sum(m * p for m, p in atoms) == pytest.approx(1)
    assert [m for m, _ in atoms] == sorted(m for m, _ in atoms)
