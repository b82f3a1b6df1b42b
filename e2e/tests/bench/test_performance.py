"""The performance page: a bench writes its own section and no other."""

import pytest

from e2e.bench.performance import put
from e2e.bench.table import Row, against

PAGE = "# Performance\n<!-- made: one -->\nold\n<!-- end -->\nwords\n<!-- made: two -->\nolder\n<!-- end -->\n"


def test_a_bench_writes_its_own_section(tmp_path):
    page = tmp_path / "performance.md"
    page.write_text(PAGE)
    put("two", "make bench-two", [Row("speed", 2.0, "GB/s"), against("ours", 1.0, "GB/s", 2.0, 5)], page)
    text = page.read_text()
    before, made = text.split("<!-- made: two -->\n")
    assert before == PAGE.split("<!-- made: two -->\n", maxsplit=1)[0]
    assert made.startswith("`make bench-two`, 20")
    assert "| ours | 1 | GB/s | 2 | 0.5 |" in made
    assert "older" not in made
    assert made.endswith("|\n<!-- end -->\n")


def test_a_section_that_is_not_there_is_said(tmp_path):
    page = tmp_path / "performance.md"
    page.write_text(PAGE)
    with pytest.raises(ValueError, match="no section three"):
        put("three", "make bench-three", [], page)
    assert page.read_text() == PAGE
