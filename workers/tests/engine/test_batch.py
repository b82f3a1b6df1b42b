"""How decodes are grouped for attention: a table."""

import pytest

from tandem_worker.engine.batch import MAX_GROUP_PAGES, length_groups


@pytest.mark.parametrize(
    ("lengths", "groups"),
    [
        pytest.param([], [], id="none"),
        pytest.param([7], [(0, 1)], id="one"),
        pytest.param([9, 8, 5, 1], [(0, 4)], id="short ones stay together"),
        pytest.param([100, 80, 20, 18], [(0, 2), (2, 4)], id="a long one does not pad a short one"),
        pytest.param([200, 200, 200, 200], [(0, 2), (2, 4)], id=f"at most {MAX_GROUP_PAGES} pages a group"),
        pytest.param([600, 600], [(0, 1), (1, 2)], id="one alone may have more"),
    ],
)
def test_length_groups(lengths, groups):
    assert length_groups(lengths) == groups
