import pytest

from tandem_operator.simulate.workload import Phase, WorkloadError, parse_phase, poisson


@pytest.mark.parametrize(
    ("words", "phase"),
    [
        pytest.param("isl=512 osl=8 rps=2", Phase(512, 8, 2.0, 300.0, 0.0), id="least"),
        pytest.param("rps=0.5 osl=8 isl=32 for=60 cv=0.3", Phase(32, 8, 0.5, 60.0, 0.3), id="all, in any order"),
    ],
)
def test_parse_phase(words, phase):
    assert parse_phase(words) == phase


@pytest.mark.parametrize(
    ("words", "error"),
    [
        pytest.param("isl=512 osl=8", "rps= is missing", id="no rate"),
        pytest.param("isl=many osl=8 rps=1", "no number", id="no number"),
        pytest.param("isl=1 osl=8 rps=1 speed=3", "speed=3", id="unknown word"),
        pytest.param("isl=0 osl=8 rps=1", "at least 1", id="no tokens"),
    ],
)
def test_what_is_no_phase_is_refused(words, error):
    with pytest.raises(WorkloadError, match=error):
        parse_phase(words)


def test_poisson_keeps_rate_length_and_seed():
    made = list(poisson([Phase(100, 10, 5.0, 1000, 0.5)], 1))
    assert len(made) == pytest.approx(5000, rel=0.1)
    assert sum(r.prompt for r in made) / len(made) == pytest.approx(100, rel=0.1)
    assert [r.arrived for r in made] == [r.arrived for r in poisson([Phase(100, 10, 5.0, 1000, 0.5)], 1)]
