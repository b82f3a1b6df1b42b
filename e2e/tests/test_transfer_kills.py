"""The table of kills is the tests' own rows."""

from e2e.harness.kube import REPO
from e2e.tables.page import is_current
from e2e.tables.transfer_kills import COMMAND, PAGE, page
from workers.tests.transfer.ends import ROW, ROWS, STOPS
from workers.tests.transfer.shortages import SHORTAGES


def test_the_page_has_each_row():
    assert is_current(REPO / PAGE, page()), f"run `{COMMAND}`"
    assert all(f"| {row.name} |" in page() for row in (*ROWS, *(shortage.row for shortage in SHORTAGES)))


def test_whoever_is_stopped_is_stopped_in_a_row():
    assert {stop.row for stop in STOPS} <= set(ROW)
    assert {stop.victim for stop in STOPS} == {"p", "d"}
