"""The quantile of bucket rates, against hand-computed values and as properties."""

from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.edges.quantile import Quantile, quantile

HALVES = [(0.1, 50.0), (0.5, 90.0), (1.0, 100.0), (inf, 100.0)]


@pytest.mark.parametrize(
    ("share", "buckets", "expected"),
    [
        pytest.param(0.5, HALVES, Quantile(0.1), id="exactly a bound"),
        pytest.param(0.7, HALVES, Quantile(0.1 + 0.4 * 20 / 40), id="half-way inside a bucket"),
        pytest.param(0.25, HALVES, Quantile(0.05), id="the lowest bucket starts at 0"),
        pytest.param(0.9, [(0.1, 5.0), (inf, 10.0)], Quantile(0.1, beyond=True), id="above the highest bound"),
        pytest.param(0.9, [(0.1, 0.0), (inf, 0.0)], None, id="no traffic"),
        pytest.param(0.9, [], None, id="no buckets"),
        pytest.param(0.9, [(0.1, 5.0), (0.5, 6.0)], None, id="no +Inf"),
        pytest.param(0.9, [(inf, 5.0)], None, id="only +Inf"),
        pytest.param(0.9, [(0.1, nan), (inf, 5.0)], None, id="NaN"),
        pytest.param(
            0.5, [(0.1, 0.0), (0.2, 4.0), (0.4, 3.9), (inf, 4.0)], Quantile(0.15), id="a bucket fell by rounding"
        ),
    ],
)
def test_quantile(share, buckets, expected):
    found = quantile(share, buckets)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert found.seconds == pytest.approx(expected.seconds)
        assert found.beyond is expected.beyond


@given(st.lists(st.floats(0, 100), min_size=2, max_size=8), st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_a_higher_share_is_no_lower(steps, one, other):
    bounds = [*(0.1 * (i + 1) for i in range(len(steps) - 1)), inf]
    total, buckets = 0.0, []
    for bound, step in zip(bounds, steps, strict=True):
        total += step
        buckets.append((bound, total))
    low, high = (quantile(share, buckets) for share in sorted((one, other)))
    assert (low is None) == (high is None)
    if low and high:
        assert low.seconds <= high.seconds + 1e-9
        assert 0 <= high.seconds <= bounds[-2] + 1e-9
