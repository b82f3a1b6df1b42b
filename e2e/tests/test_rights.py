"""RBAC: with the shipped role every story goes through, and without any one right of it one does not."""

from __future__ import annotations

import pytest

from e2e.tables.fields import settled
from e2e.tables.kills import STORIES
from e2e.tables.memory import Case
from e2e.tables.rights import ROLE, Right, guard, rights_of
from tandem_operator.edges.errors import ApiError
from tandem_operator.edges.kinds import KINDS
from tandem_operator.loop.handlers import WATCHED
from tandem_operator.loop.refs import Failed

# What kopf asks for, and no pass: a list and a watch of every kind that the handlers are for.
WATCHES = {(KINDS[kind].group, KINDS[kind].plural, verb) for kind in WATCHED for verb in ("list", "watch")}

# Events are news, and without a word on quotas the API server has the last one.
SOFT = {"events", "resourcequotas"}


async def told(held: frozenset[Right]) -> tuple[set[Right], set[Right], bool]:
    """Tell every story with these rights: the rights that were asked for, those that were missed, and were all told?"""
    used, missed, well = set(), set(), True
    for story in STORIES:
        case = Case(story.body())
        guard(case, held, used, missed)
        try:
            await settled(case)
            if story.begin is not None:
                story.begin(case)
            well = well and not isinstance(await case.converge(), Failed)
        except (ApiError, AssertionError):  # the first list is refused; or the same is tried for ever
            well = False
    return used, missed, well


async def test_with_the_shipped_role_every_story_goes_through() -> None:
    _, missed, well = await told(rights_of(ROLE))
    assert (missed, well) == (set(), True)


async def test_a_right_that_nothing_asks_for_is_not_in_the_role() -> None:
    used, _, _ = await told(rights_of(ROLE))
    assert rights_of(ROLE) - used - WATCHES == set()


@pytest.mark.slow
@pytest.mark.parametrize("right", sorted(rights_of(ROLE) - WATCHES), ids="-".join)
async def test_a_right_that_is_taken_away_is_missed(right: Right) -> None:
    _, missed, well = await told(rights_of(ROLE) - {right})
    assert missed == {right}
    assert not well or right[1] in SOFT, "a pass does not fail for these"
