import pytest

from tandem_operator.simulate.workload import Phase, WorkloadError, parse_phase, poisson, trace

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


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


def test_trace(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(HEAD + "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:05.9799600,3180,8\n")
    assert [(r.arrived, r.prompt, r.output) for r in trace(path, rate=2)] == [(0.0, 4808, 10), (1.0, 3180, 8)]
    assert len(list(trace(path, limit_s=1))) == 1


@pytest.mark.parametrize(
    ("text", "error"),
    [
        pytest.param("a,b\n1,2\n", "TIMESTAMP is missing", id="other columns"),
        pytest.param(HEAD + "2023-11-16 18:17:03,x,10\n", "line 2", id="no number"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path, text, error):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(WorkloadError, match=error):
        list(trace(path))
