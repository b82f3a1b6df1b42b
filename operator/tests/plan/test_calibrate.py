from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_operator.plan.calibrate import Point, calibrate, computed_share, fit
from tandem_operator.plan.facts import RoleUse
from tandem_operator.plan.linear import invert
from tandem_operator.plan.roofline import prior_of
from tests.plan.examples import CPU, H100, NOW, SMOL, history


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
