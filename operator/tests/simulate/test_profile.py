import pytest

from tandem_operator.simulate.profile import of_phase, of_requests
from tandem_operator.simulate.request import Request
from tandem_operator.simulate.workload import Phase, WorkloadError, poisson

HOUR = list(poisson([Phase(1000, 100, 2.0, 3000, 0.5), Phase(1000, 100, 6.0, 600, 0.5)], 0))


def test_a_trace_is_sized_for_its_busy_minutes():
    found = of_requests(HOUR, 100_000)
    assert found.requests == len(HOUR)
    assert found.mean_rate == pytest.approx(len(HOUR) / 3600, rel=0.01)
    assert found.sized_rate == pytest.approx(6.0, rel=0.15)
    assert found.prompt.mean == pytest.approx(1000, rel=0.03)
    assert found.prompt.variation == pytest.approx(0.25, rel=0.1)
    assert found.prompt.p50 < found.prompt.p90 < found.prompt.p99
    assert found.burstiness > 1  # a Poisson process whose rate changes is burstier than Poisson
    assert found.reuse is None


@pytest.mark.parametrize(
    ("hashes", "cache_tokens", "unbounded", "cached"),
    [
        pytest.param([(1, 2), (1, 2), (1, 3)], 10_000, (1023 + 512) / 3072, (1023 + 512) / 3072, id="shared prefixes"),
        pytest.param([(1, 2), (3, 4), (1, 2)], 1024, 1023 / 3072, 0.0, id="dropped before it is used again"),
        pytest.param([(1, 2), (3,), (1, 2)], 1024, 1023 / 3072, 512 / 3072, id="the end of a prompt goes first"),
        pytest.param([(1, 2), (9, 2)], 10_000, 0.0, 0.0, id="only whole prefixes count"),
    ],
)
def test_reuse(hashes, cache_tokens, unbounded, cached):
    requests = [Request(float(n), 1024, 1, h) for n, h in enumerate(hashes)]
    found = of_requests(requests, cache_tokens).reuse
    scale = 1024 * 3 / (1024 * len(hashes))
    assert (found.unbounded, found.cached) == pytest.approx((unbounded * scale, cached * scale))


@pytest.mark.parametrize("times", [[], [0.0], [0.0, 0.0]], ids=["none", "one", "all at once"])
def test_what_gives_no_rate_is_refused(times):
    with pytest.raises(WorkloadError, match="give no rate"):
        of_requests([Request(at, 10, 1) for at in times], 0)


def test_words_are_taken_at_their_word():
    found = of_phase(Phase(3000, 150, 20.0, cv=0.5))
    assert (found.sized_rate, found.prompt.mean, found.output.mean) == (20.0, 3000, 150)
    assert found.prompt.variation == 0.25
    assert found.load().computed_tokens == 3000
