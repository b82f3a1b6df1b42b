"""Every fault of the table, and every story killed after each of its writes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from e2e.harness.kube import REPO
from e2e.tables.fault_cases import FAULTS, nothing
from e2e.tables.faults import PAGE, Healed, page, try_fault
from e2e.tables.fields import base, changes, settled
from e2e.tables.kills import STORIES, ends_of
from e2e.tables.memory import Case
from e2e.tables.page import is_current
from e2e.tables.watching import and_what_was_before, twice_and_backwards, without_deletions
from tandem_operator.loop.cache import Cache
from tandem_operator.loop.main import world_of

healed: dict[str, Healed] = {}
killed: dict[str, list[tuple[str, ...]]] = {}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
async def test_a_fault_ends_as_if_it_had_not_been(fault) -> None:
    found = healed[fault.name] = await try_fault(fault)
    assert found.differs == ()
    assert found.idle_writes == 0


@pytest.mark.parametrize("way", [and_what_was_before, twice_and_backwards], ids=lambda way: way.__name__)
async def test_an_operator_that_believed_old_events_would_not_come_to_this_end(way, monkeypatch) -> None:
    (fault,) = [fault for fault in FAULTS if fault.way is way]
    monkeypatch.setattr(Cache, "is_news", lambda *_, **__: True)
    with pytest.raises(AssertionError, match="still writing"):
        await try_fault(fault)


async def test_without_a_list_what_no_event_told_would_stay() -> None:
    (fault,) = [fault for fault in FAULTS if fault.way is without_deletions]
    assert "deployments chat-decode spec.replicas" in (await try_fault(replace(fault, heal=nothing))).differs


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
async def test_killed_after_any_write_it_comes_to_the_same_end(story) -> None:
    found = killed[story.name] = await ends_of(story)
    assert [number for number, differs in enumerate(found, 1) if differs] == []


async def test_two_operators_at_once_come_to_one_end() -> None:
    """Where a lease is lost and the loser has not noticed: both write the same, and then nothing."""
    expected, _ = await settled(Case(base()))
    case = Case(base())
    worlds = [case.world, world_of(case.settings, case.kube)]
    for turn in range(12):
        case.world = worlds[turn % 2]
        await case.one_pass()
        case.kube.settle()
    before = len(case.kube.writes)
    for world in worlds:
        case.world = world
        await case.one_pass()
    assert len(case.kube.writes) == before
    found, _ = await settled(case)
    assert changes(expected, found) == ()


@pytest.mark.slow
async def test_the_page_is_current() -> None:
    if set(healed) != {fault.name for fault in FAULTS} or set(killed) != {story.name for story in STORIES}:
        pytest.skip("needs the rows of the tests above")
    rows = [healed[fault.name] for fault in FAULTS], [(story, killed[story.name]) for story in STORIES]
    assert is_current(REPO / PAGE, page(*rows)), "run `python -m e2e.tables.faults`"
