"""Both sides under any interleaving (sides_machine.py), by each fence; and that the model beside them notices."""

import pytest
from hypothesis import settings

from tandem_worker.transfer.base import Fence
from workers.tests.transfer.sides_machine import Machine
from workers.tests.transfer.sides_world import SAMPLING, Pages

Machine.TestCase.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
TestBothSides = Machine.TestCase


class MessageMachine(Machine):
    """A writer of whom only its own word proves anything: the connection's end frees no page."""

    fence = Fence.MESSAGE

    def nothing_is_left(self):
        # What is left is quarantined, never free and never anybody's.
        assert set(self.pages.owner.values()) == set(self.pages.quarantined)
        assert not self.pages.reserved


MessageMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestWordAlone = MessageMachine.TestCase


class KeyMachine(Machine):
    """A one-sided writer: the connection's end proves nothing, but its memory key can be ended, and is."""

    fence = Fence.KEY
    has_key = True


KeyMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestOneSidedWriter = KeyMachine.TestCase


def test_the_model_itself_notices_a_foreign_write():
    pages = Pages()
    pages.reserve("a", [1, 1], SAMPLING)
    with pytest.raises(AssertionError, match="another prompt"):
        pages.fill(*pages.open_pages("a", 0, 1), b"\x02\x02")
    with pytest.raises(KeyError):
        pages.commit("a", None, None)
