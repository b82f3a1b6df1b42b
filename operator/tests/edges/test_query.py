"""The one query: its branches, its marks, and what cannot be smuggled into it."""

from __future__ import annotations

import subprocess

import pytest

from tandem_operator.edges.query import branches, escaped, union


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param("plain", "plain", id="plain"),
        pytest.param('a"} or up{x="', 'a\\"} or up{x=\\"', id="a closing quote"),
        pytest.param("back\\slash", "back\\\\slash", id="a backslash"),
        pytest.param("two\nlines", "two\\nlines", id="a line end"),
    ],
)
def test_escaped(value, expected):
    assert escaped(value) == expected


def test_every_branch_is_marked_and_groups_by_resource():
    for fact, expression in branches(60, "").items():
        assert "by (namespace, resource" in expression
        assert f'"fact", "{fact}"' in union(60)
    assert "[60s]" in union(60)
    assert 'namespace="serving"' in union(60, "serving")
    assert "namespace=" not in union(60)


def test_promtool_reads_the_query(tmp_path):
    rules = tmp_path / "rules.yaml"
    quoted = union(60, 'x"y').replace("'", "''")
    rules.write_text(f"groups: [{{name: g, rules: [{{record: 'a:b', expr: '{quoted}'}}]}}]\n")
    done = subprocess.run(
        ["promtool", "check", "rules", str(rules)], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
