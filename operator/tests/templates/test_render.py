"""Values in templates: whatever text they are, they come out as they went in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.templates.render import render

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def through(text):
    found = render("serviceaccount", metadata={"annotations": {text: text}, "name": "a"}, token=False)
    return found["metadata"]["annotations"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\U0001f600 beyond 16 bits",
        "\\U0001f600 in words",
        "\\\U0001f600 behind a backslash",
        "\x7f\x85\u2028\ufeff",
        "{{ 1 }}: #'\"",
        "<&>",
    ],
    ids=ascii,
)
def test_a_text_is_a_value(text):
    assert through(text) == {text: text}


@given(texts)
def test_any_text_is_a_value(text):
    assert through(text) == {text: text}
