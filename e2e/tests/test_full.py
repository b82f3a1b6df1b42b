"""`make test-full`'s own report: what the runners said is what it says."""

import sys

import pytest

from e2e.full import counted, run


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        pytest.param("2394 passed, 1 skipped in 1304.81s (0:21:44)", {"passed": 2394, "skipped": 1}, id="all pass"),
        pytest.param("1 failed, 3 passed in 3.00s", {"failed": 1, "passed": 3}, id="one failed"),
        pytest.param("nanobind: leaked 3 types!", {}, id="a library's last words"),
    ],
)
def test_only_the_closing_line_counts(line, counts):
    assert counted(line) == counts


@pytest.mark.parametrize("code", [0, 1])
def test_a_step_passes_by_its_exit_code_and_not_by_its_counts(code):
    script = f"print('1 failed, 3 passed in 3.00s'); raise SystemExit({code})"
    step = run("python", [sys.executable, "-c", script])
    assert step["passed"] is (code == 0)
    assert step["counts"] == {"failed": 1, "passed": 3}
