"""What the router tells of how unevenly requests arrive."""

from __future__ import annotations

import pytest

from tandem_router.metrics import Metrics
from tandem_router.slo import Targets


@pytest.mark.parametrize(
    ("ttft_s", "times", "squares", "bin_s"),
    [
        pytest.param(2.0, [], 0, 2.0, id="nobody"),
        pytest.param(2.0, [0.1, 2.1, 4.1], 3, 2.0, id="one a bin"),
        pytest.param(2.0, [0.1, 0.2, 1.9, 2.0], 10, 2.0, id="three together, and the next bin's first"),
        pytest.param(30.0, [1.0, 4.9, 5.0], 5, 5.0, id="a long target: 5 s"),
    ],
)
def test_bunches(ttft_s, times, squares, bin_s):
    metrics = Metrics(Targets(ttft_s, 0.1))
    for now in times:
        metrics.arrived(now)
    read = metrics.registry.get_sample_value
    assert read("tandem_router_arrivals_total") == len(times)
    assert read("tandem_router_arrivals_squared_total") == squares
    assert read("tandem_router_arrival_bin_seconds") == bin_s
