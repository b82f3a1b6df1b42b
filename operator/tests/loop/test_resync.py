"""What a resync does beside listing: the collector's sight."""

from __future__ import annotations

import gc
import weakref

import pytest

from tandem_operator.loop.resync import set_aside


class Node:
    """May be in a cycle."""

    def __init__(self):
        self.me = self


@pytest.fixture
def _as_before():
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("_as_before")
def test_what_is_set_aside_is_looked_at_again_by_the_next_resync():
    kept = Node()
    seen = weakref.ref(kept)
    set_aside()
    assert gc.get_freeze_count() > 0
    del kept
    gc.collect()
    assert seen() is not None, "out of the collector's sight"
    set_aside()
    assert seen() is None
