"""Every field of the CRD: set, changed and unset, and the children follow. The table in docs/reference says how."""

from __future__ import annotations

import pytest

from e2e.harness.kube import REPO
from e2e.tables.field_values import ALLOWED
from e2e.tables.fields import CHOSEN, ELSEWHERE, FIELDS, PAGE, Row, page, try_field
from e2e.tables.page import is_current

SLOW = pytest.mark.slow
tried: dict[str, Row] = {}


async def row_of(path: str) -> Row:
    if path not in tried:
        tried[path] = await try_field(path)
    return tried[path]


# The router's overlay is the pools' again.
OFTEN = [path if not path.startswith("spec.router.template.") else pytest.param(path, marks=SLOW) for path in FIELDS]


@pytest.mark.parametrize("path", OFTEN)
async def test_a_field_acts_or_is_refused_and_goes_back(path: str) -> None:
    row = await row_of(path)
    assert row.taken() != [], "no value was taken: say in field_values.py what it needs beside it"
    assert row.silent() == [], (
        "taken, and nothing that is known of follows: say in ELSEWHERE where it acts, or refuse it"
    )
    if path not in CHOSEN:
        assert [step.value for step in row.steps if not step.converged] == [], "not as a resource that began so"
        assert row.unset != "stays", "something of the field is left"


def test_no_row_is_of_a_field_that_is_not_there() -> None:
    assert set(ELSEWHERE) | CHOSEN | set(ALLOWED) <= set(FIELDS)


@SLOW
async def test_the_page_is_current() -> None:
    assert is_current(REPO / PAGE, page([await row_of(path) for path in FIELDS])), "run `python -m e2e.tables.fields`"
