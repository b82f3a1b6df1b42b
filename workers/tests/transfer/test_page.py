"""The reference page says what the tables say."""

from pathlib import Path

import pytest

from tandem_worker.transfer import page, push, ticket

ROOT = Path(__file__).parents[3]


def test_the_page_is_current():
    assert page.main(["--check", "--root", str(ROOT)]) == 0


def test_a_page_that_is_not_current_is_found_and_mended(tmp_path, capsys):
    path = tmp_path / page.PAGE
    path.parent.mkdir(parents=True)
    path.write_text("# KV\n<!-- made: push-states -->\nold\n<!-- end -->\nthe end\n")
    assert page.main(["--check", "--root", str(tmp_path)]) == 1
    assert "not current" in capsys.readouterr().err
    assert page.main(["--root", str(tmp_path)]) == 0
    assert page.main(["--check", "--root", str(tmp_path)]) == 0
    assert path.read_text().endswith("<!-- end -->\nthe end\n")


@pytest.mark.parametrize("side", [ticket, push], ids=["ticket", "push"])
def test_every_name_is_explained_and_used(side):
    for kind in (side.State, side.Event, side.Act):
        assert all(word.says for word in kind)
    found = side.TABLE.moves
    assert {event for _, event in found} | {side.Event.REVOKED if side is ticket else side.Event.HEAD} == set(
        side.Event
    )
    assert {act for move in found.values() for act in move.acts} == set(side.Act)
    assert {move.then for move in found.values()} | {state for state, _ in found} == set(side.State)
