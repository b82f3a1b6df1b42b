"""The engine's bench: a figure that the machine cannot give is refused, and gaps are those of the time asked for."""

import pytest

from e2e.bench.engine import check_possible
from e2e.bench.engine_serving import gaps, p99

# A step of one token that reads 1 GB and computes 10 GFLOP, on a machine of 10 GB/s and 50 GFLOP/s: 0.2 s at least.
RUN = {
    "limits": {"read_gb_s": 10.0, "gemm_gflop_s": 50.0},
    "work": {"decode 1": {"flop": 1e10, "bytes": 1e9, "tokens": 1}},
}


@pytest.mark.parametrize(
    ("rate", "possible"),
    [
        pytest.param(4.9, True, id="within"),
        pytest.param(5.1, False, id="beyond the products' rate"),
        pytest.param(-3.0, False, id="a difference of two timings that came out below zero"),
        pytest.param(0.0, False, id="nothing"),
    ],
)
def test_a_figure_beyond_the_machine_ends_the_bench(rate, possible):
    run = {**RUN, "rates": {"peer": {"decode 1": rate}}}
    if possible:
        check_possible(run, "peer")
    else:
        with pytest.raises(RuntimeError, match=r"peer, decode 1: .* its timing is wrong"):
            check_possible(run, "peer")


def test_gaps_are_those_that_end_in_the_time_and_not_a_streams_first():
    times = [[0.0, 9.0, 10.0, 11.0, 13.0, 16.0, 20.0]]
    assert gaps(times, 0.0, 100.0) == [2.0, 3.0, 4.0]
    assert gaps(times, 13.0, 16.0) == [3.0]


@pytest.mark.parametrize(("count", "expected"), [(1, 0), (50, 49), (100, 99), (1000, 990)])
def test_p99(count, expected):
    assert p99([float(at) for at in range(count)]) == expected
