"""What kopf is told: pages of a list, and to keep nothing of an object."""

from __future__ import annotations

import kopf
import pytest

from tandem_operator.edges.kinds import KINDS
from tandem_operator.edges.kube import PAGE
from tandem_operator.loop.handlers import CHILD_SELECTOR, CHILDREN, settings_for

POD = {"metadata": {"name": "p", "labels": {"a": "b"}, "annotations": {"c": "d"}}, "spec": {"nodeName": "n"}}


@pytest.fixture
def settings():
    found = kopf.OperatorSettings()
    settings_for(found, "")
    return found


def test_a_start_reads_lists_by_pages(settings):
    assert settings.watching.chunk_size == PAGE


@pytest.mark.parametrize("kind", CHILDREN)
def test_the_server_chooses_by_label(settings, kind):
    place = KINDS[kind]
    assert settings.watching.label_selectors[place.group, place.version, place.plural] == CHILD_SELECTOR


def test_nothing_of_an_object_is_copied_nor_written_on_it(settings):
    storage, body, patch = settings.persistence.diffbase_storage, kopf.Body(POD), kopf.Patch()
    essence = storage.build(body=body, extra_fields=["spec"])
    storage.store(body=body, patch=patch, essence=essence)
    assert (dict(essence), storage.fetch(body=body), dict(patch)) == ({}, None, {})
