"""When a live object counts as what was asked for."""

from __future__ import annotations

import pytest

from tandem_operator.templates.differ import has_all, lacking


@pytest.mark.parametrize(
    ("live", "wanted", "same"),
    [
        pytest.param({"a": 1, "b": 2}, {"a": 1}, True, id="a default was added"),
        pytest.param({"a": 1}, {"a": 1, "b": 2}, False, id="a field is missing"),
        pytest.param({"a": {"b": 1}}, {"a": {"b": 2}}, False, id="a nested value moved"),
        pytest.param([{"a": 1, "d": 0}], [{"a": 1}], True, id="an item with defaults"),
        pytest.param([{"a": 1}, {"b": 1}], [{"a": 1}], False, id="an item too many"),
        pytest.param({"cpu": "500m"}, {"cpu": "0.5"}, True, id="one quantity, two spellings"),
        pytest.param({"cpu": "1"}, {"cpu": "1000m"}, True, id="a core"),
        pytest.param({"m": "1Gi"}, {"m": "1073741824"}, True, id="a gibibyte"),
        pytest.param({"m": "1G"}, {"m": "1Gi"}, False, id="G is not Gi"),
        pytest.param({"x": "1e3"}, {"x": "1k"}, True, id="an exponent"),
        pytest.param({"x": True}, {"x": "1"}, False, id="a boolean is no quantity"),
        pytest.param({"x": "..."}, {"x": "1"}, False, id="dots are no quantity"),
        pytest.param(None, {"a": 1}, False, id="nothing there"),
    ],
)
def test_has_all(live, wanted, same):
    assert has_all(live, wanted) is same


@pytest.mark.parametrize("zero", [False, 0, "", [], {}])
@pytest.mark.parametrize(
    ("key", "same"),
    [
        pytest.param("readOnly", True, id="a zero value that is not kept"),
        pytest.param("allowPrivilegeEscalation", False, id="unset would mean something else"),
    ],
)
def test_a_zero_value_that_is_not_there(key, zero, same):
    assert has_all({}, {key: zero}) is same


@pytest.mark.parametrize(
    ("live", "wanted", "path"),
    [
        ({"spec": {"a": [{"b": 1}]}}, {"spec": {"a": [{"b": 2}]}}, "spec.a[0].b"),
        ({"spec": {"a": [1, 2]}}, {"spec": {"a": [1]}}, "spec.a"),
        ({"spec": {}}, {"spec": {"a": {"b": 1}}}, "spec.a"),
        ({"spec": 1}, {"spec": {"a": 1}}, "spec"),
        ({"spec": {"a": 1, "b": 2}}, {"spec": {"a": 1}}, None),
    ],
)
def test_the_first_difference_has_a_path(live, wanted, path):
    assert lacking(live, wanted) == path
