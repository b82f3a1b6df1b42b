import random
from dataclasses import replace
from datetime import timedelta
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_operator.plan.calibrate import Point, calibrate, calibrate_pools, computed_share, fit
from tandem_operator.plan.facts import RebalanceMode, Role, RoleUse
from tandem_operator.plan.level import follow
from tandem_operator.plan.linear import invert
from tandem_operator.plan.roofline import prior_of
from tandem_operator.simulate.run import Scenario, Simulation
from tandem_operator.simulate.worker import Truth
from tandem_operator.simulate.workload import Phase, poisson
from tests.plan.examples import CPU, H100, H200, NOW, SMOL, history, pinned


def decode_history(points, a=0.03, b=0.01, noise=lambda n: 1.0):
    """Windows whose decode workers run these batches at a + b·batch seconds a step."""
    made = []
    for n, batch in enumerate(points):
        busy = 0.9
        steps = busy / ((a + b * batch) * noise(n))
        at = NOW - timedelta(seconds=5 * (len(points) - 1 - n))
        made.append(replace(history(1)[0], at=at, decode=RoleUse(busy, steps * batch, steps)))
    return tuple(made)


@pytest.mark.parametrize("device", [pytest.param(H100, id="prior 4 orders off"), pytest.param(CPU, id="prior near")])
def test_one_operating_point_gives_the_level(device):
    prior = prior_of(device, 1, SMOL)
    found = calibrate(prior, prior, decode_history([4.0] * 12))
    assert found.decode.seconds(prior.step_parts(4.0, 516)) == pytest.approx(0.07, rel=0.05)
    assert found.prefill.seconds(prior.prefill_parts(512)) == pytest.approx(0.512, rel=0.05)


@pytest.mark.parametrize("device", [pytest.param(H100, id="prior 4 orders off"), pytest.param(CPU, id="prior near")])
def test_several_operating_points_refine_the_shape(device):
    prior = prior_of(device, 1, SMOL)
    found = calibrate(prior, prior, decode_history([1, 2, 3, 4, 6, 8, 10, 8, 6, 4, 3, 2])).decode
    for batch in (1, 5, 10, 14):
        assert found.seconds(prior.step_parts(batch, 516)) == pytest.approx(0.03 + 0.01 * batch, rel=0.12)


def test_doubt_grows_with_the_distance_from_what_was_seen():
    prior = prior_of(H100, 1, SMOL)
    found = calibrate(prior, prior, decode_history([4.0] * 12)).decode
    near, far = found.doubt(prior.step_parts(4, 516)), found.doubt(prior.step_parts(40, 516))
    assert near < 0.06 < far


def test_a_spike_is_an_outlier_and_a_new_level_is_not():
    prior = prior_of(H100, 1, SMOL)
    spiked = calibrate(prior, prior, decode_history([4.0] * 20, noise=lambda n: 9.0 if n == 12 else 1.0)).decode
    assert spiked.seconds(prior.step_parts(4, 516)) == pytest.approx(0.07, rel=0.05)
    moved = calibrate(prior, prior, decode_history([1.0] * 30 + [8.0] * 8)).decode
    assert moved.seconds(prior.step_parts(8, 516)) == pytest.approx(0.11, rel=0.1)


def test_nothing_observed_is_no_model():
    prior = prior_of(H100, 1, SMOL)
    idle = history(5, prefill=RoleUse(0.0, 0.0), decode=RoleUse(0.0, 0.0, 0.0))
    found = calibrate(prior, prior, idle)
    assert found.prefill is None
    assert found.decode is None
    assert fit([]) is None


@pytest.mark.parametrize(
    ("windows", "share"),
    [
        pytest.param(history(5, rps=1.0), 1.0, id="no hits"),
        pytest.param(history(5, rps=1.0, prefill=RoleUse(0.2, 256.0)), 0.5, id="half comes from the prefix cache"),
        pytest.param(history(5, rps=4.0), 1.0, id="overloaded: cannot tell"),
        pytest.param((), 1.0, id="nothing"),
    ],
)
def test_computed_share(windows, share):
    assert computed_share(windows) == pytest.approx(share, rel=0.01)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.floats(1e-6, 1e2), st.floats(0, 1e2), st.floats(0, 1e2), st.floats(1e-4, 1e3)),
        min_size=1,
        max_size=12,
    )
)
def test_factors_are_never_negative_and_doubt_is_finite(rows):
    found = fit([Point((a, b, c), seconds) for a, b, c, seconds in rows])
    if found is not None:
        assert min(found.factors) >= 0
        assert 0 <= found.doubt((1.0, 1.0, 1.0)) < float("inf")


def test_invert_against_a_known_inverse():
    inverse = invert([[4.0, 1.0], [1.0, 3.0]])
    assert inverse[0] == pytest.approx((3 / 11, -1 / 11))
    assert inverse[1] == pytest.approx((-1 / 11, 4 / 11))


# --- hidden truths ---


def hidden_run(seed, drift=lambda n: 1.0, outliers=0.0, count=20):
    """(prior, windows, true seconds of the last step and its parts): random factors, loads that wander, 3 % noise."""
    rng = random.Random(seed)
    prior = prior_of(rng.choice((H100, H200)), 1, SMOL)
    level = 10 ** rng.uniform(-0.5, 1.5)
    factors = [level * 10 ** rng.uniform(-0.4, 0.4) for _ in range(3)]
    batch, made = rng.uniform(2, 20), []
    for n in range(count):
        batch = min(max(batch * 10 ** rng.uniform(-0.15, 0.15), 1.2), 60.0)
        parts = prior.step_parts(batch, 516)
        true_s = drift(n) * sum(k * x for k, x in zip(factors, parts, strict=True))
        seen_s = true_s * (1 + rng.gauss(0, 0.03)) * (rng.choice((0.2, 4.0)) if rng.random() < outliers else 1.0)
        at = NOW - timedelta(seconds=15 * (count - 1 - n))
        steps = 0.9 / seen_s
        made.append(replace(history(1)[0], at=at, decode=RoleUse(0.9, steps * batch, steps)))
    return prior, tuple(made), true_s, parts


@pytest.mark.parametrize(
    ("drift", "outliers", "tolerance"),
    [
        pytest.param(lambda n: 1.0, 0.0, 0.05, id="a steady truth: within 20 windows"),
        pytest.param(lambda n: 1.0, 0.1, 0.06, id="one window in ten is far off"),
        pytest.param(lambda n: 1.0 + 0.03 * n, 0.0, 0.10, id="a drift by 57 % over 20 windows"),
        pytest.param(lambda n: 1.5 if n >= 14 else 1.0, 0.0, 0.15, id="half as slow again since six windows"),
    ],
)
def test_a_hidden_truth_is_found_and_followed(drift, outliers, tolerance):
    """Nine in ten random truths are within the tolerance, and the doubt covers the error."""
    errors = []
    for seed in range(30):
        prior, windows, true_s, parts = hidden_run(seed, drift, outliers)
        found = calibrate(prior, prior, windows).decode
        errors.append(abs(found.seconds(parts) / true_s - 1))
        assert errors[-1] < 3 * found.doubt(parts) or outliers
    assert sorted(errors)[26] < tolerance


@pytest.mark.parametrize("seed", range(4))
def test_the_simulators_truth_is_found_in_twenty_windows(seed):
    rng = random.Random(seed)
    truth = Truth(rng.uniform(2e-4, 2e-3), rng.uniform(0.01, 0.05), rng.uniform(1e-3, 1e-2), rng.uniform(0, 0.05))
    limits = pinned(mode=RebalanceMode.OFF, interval_s=15)
    scenario = Scenario(limits, SMOL, {p.name: truth for p in limits.pools})
    isl, rps = 256, 0.5 / (256 * truth.prompt_token_s + truth.prompt_base_s)
    run = Simulation(scenario, poisson([Phase(isl, 60, min(rps, 1.0), 330)], seed)).play(330)
    windows = tuple(t.window for t in run.ticks[2:22])
    prior = prior_of(H100, 1, SMOL)
    found = calibrate(prior, prior, windows)
    prompt_s = truth.prompt_base_s + isl * truth.prompt_token_s
    assert found.prefill.seconds(prior.prefill_parts(isl)) == pytest.approx(prompt_s, rel=0.1)
    batch = median(w.decode.tokens_rate / w.decode.steps_rate for w in windows)
    assert found.decode.seconds(prior.step_parts(batch, isl + 30)) == pytest.approx(truth.step_s(batch), rel=0.1)


def test_a_level_shift_is_believed_after_three_windows():
    path = follow([(1.0, 1.0)] * 10 + [(2.0, 1.0)] * 4)
    assert path[10].value == pytest.approx(1.0)
    assert path[-1].value == pytest.approx(2.0, rel=0.1)


def test_pools_that_are_told_apart_have_their_own_level():
    """The second decode pool is twice as slow as the role's mean says; it alone is corrected."""
    uses = {"decode": RoleUse(0.5, 50.0, 10.0), "slow": RoleUse(0.5, 25.0, 5.0)}
    windows = tuple(replace(w, decode_of=uses) for w in history(12))
    prior = prior_of(H100, 1, SMOL)
    fits = calibrate_pools({"decode": prior, "slow": prior}, Role.DECODE, windows)
    parts = prior.step_parts(5.0, 516)
    assert fits["slow"].seconds(parts) == pytest.approx(2 * fits["decode"].seconds(parts), rel=0.02)
    assert calibrate_pools({"decode": prior}, Role.PREFILL, windows) == {}
