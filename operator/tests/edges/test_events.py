"""Events: capped, and the same one is the same object."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tandem_operator.edges.events import MAX_NOTE, Event, capped, event_object

NOW = datetime(2026, 1, 1, 12, 0, 30, 5, tzinfo=UTC)
RESOURCE = {"metadata": {"name": "chat", "namespace": "ns", "uid": "u"}}


@pytest.mark.parametrize("note", ["short", "é" * 2000, "x" * MAX_NOTE, "x" * (MAX_NOTE + 1)])
def test_capped(note):
    found = capped(note)
    assert len(found.encode()) <= MAX_NOTE
    assert (found == note) == (len(note.encode()) <= MAX_NOTE)


def test_the_name_is_the_content():
    one, two = Event("Rebalanced", "Flip", "a"), Event("Rebalanced", "Flip", "b")
    name = event_object(RESOURCE, one, NOW, "op")["metadata"]["name"]
    assert name == event_object(RESOURCE, one, NOW.replace(second=59), "op")["metadata"]["name"]
    assert name != event_object(RESOURCE, two, NOW, "op")["metadata"]["name"]


def test_as_the_api_wants_it():
    found = event_object(RESOURCE, Event("Stalled", "Reconcile", "note", warning=True), NOW, "op")
    assert found["eventTime"] == "2026-01-01T12:00:30.000005Z"
    assert found["type"] == "Warning"
    assert found["regarding"]["uid"] == "u"
