import pytest

from e2e.bench.check import Check, near
from e2e.bench.table import Row


@pytest.mark.parametrize(
    ("check", "passed"),
    [
        pytest.param(near("m", 102.0, "ms", 100.0, 0.02), True, id="at its tolerance"),
        pytest.param(near("m", 97.9, "ms", 100.0, 0.02), False, id="below it"),
        pytest.param(near("m", None, "ms", 100.0, 0.02), False, id="no answer"),
        pytest.param(Check("m", 0.05, "%", 0.0, 0.1), True, id="nothing expected, nearly nothing got"),
        pytest.param(Check("m", 7.0, "s"), True, id="for information"),
    ],
)
def test_passed(check, passed):
    assert check.passed is passed


def test_the_published_figure_is_the_baseline():
    assert near("m", 110.0, "ms", 100.0, 0.2, 5).row() == Row("m", 110.0, "ms", 100.0, 1.1, 5)
    assert Check("m", 7.0, "s").row() == Row("m", 7.0, "s")
