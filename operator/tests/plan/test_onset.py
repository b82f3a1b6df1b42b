"""What one window seems to say at the onset of a burst, and what some windows must agree on."""

from datetime import timedelta

import pytest

from tandem_operator.plan.facts import RoleUse, Target
from tandem_operator.plan.study import batch_room, windows_of_this_plan
from tests.plan.examples import NOW, observed, pinned, prompt_window

TARGET = Target({"prefill": 1, "decode": 2}, 1, 2)
# A batch of 2 runs, and 9 prompts wait though prefill is busy for 40 % of its time.
TICKETS = {"rps": 2.0, "prefill": RoleUse(0.4, 400.0, None, 9.0, 4608.0), "decode": RoleUse(2.0, 40.0, 20.0, 0.0, None)}
CALM = {"rps": 2.0, "decode": RoleUse(2.0, 40.0, 20.0, 0.0, None)}


def windows(*changes, step=15):
    start = NOW - timedelta(seconds=step * (len(changes) - 1))
    return tuple(prompt_window(start + timedelta(seconds=step * n), TARGET, **c) for n, c in enumerate(changes))


@pytest.mark.parametrize(
    ("history", "room"),
    [
        pytest.param(windows(CALM, CALM, TICKETS), 64, id="one window: a burst may just begin"),
        pytest.param(windows(CALM, TICKETS, TICKETS), 64, id="two"),
        pytest.param(windows(TICKETS, TICKETS, TICKETS), 2.0, id="three agree: prompts wait for tickets"),
    ],
)
def test_batch_room(history, room):
    assert batch_room(history, 64) == room


@pytest.mark.parametrize("interval_s", [5, 15, 30])
def test_there_are_windows_enough_to_agree_at_every_interval(interval_s):
    facts = observed(pinned(interval_s=interval_s), TARGET, history=windows(*[CALM] * 12, step=interval_s))
    assert len(windows_of_this_plan(facts, NOW)) >= 3
