"""The one query: its branches, its marks, and what cannot be smuggled into it."""

from __future__ import annotations

import json
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


def judged(folder, series, fact, expected):
    """promtool's judgement of a fact's sum over these series, after three minutes."""
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    question = {"expr": f"sum({branches(60, '')[fact]})", "eval_time": "3m", "exp_samples": [{"value": expected}]}
    test = {"rule_files": [], "tests": [{"interval": "30s", "input_series": inputs, "promql_expr_test": [question]}]}
    (folder / "test.yaml").write_text(json.dumps(test))
    words = ["promtool", "test", "rules", str(folder / "test.yaml")]
    return subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)


VLLM = 'namespace="ns",resource="chat",role="decode",pod="d0",engine='


@pytest.mark.parametrize(
    ("fact", "series", "expected"),
    [
        pytest.param("load", {"num_requests_running": "3x9", "num_requests_waiting": "2x9"}, 5, id="requests on a pod"),
        pytest.param("waiting", {"num_requests_waiting": "2x9"}, 2, id="requests that wait"),
        pytest.param("decode_tokens", {"generation_tokens_total": "0+60x9"}, 2, id="tokens a second"),
        pytest.param("decode_steps", {"iteration_tokens_total_count": "0+30x9"}, 1, id="steps a second"),
    ],
)
def test_a_vllm_workers_own_metrics_are_understood(tmp_path, fact, series, expected):
    named = {f'vllm:{name}{{{VLLM}"0"}}': values for name, values in series.items()}
    done = judged(tmp_path, named, fact, expected)
    assert done.returncode == 0, done.stdout + done.stderr


def test_data_parallel_engines_of_one_pod_are_one_worker(tmp_path):
    named = {f'vllm:num_requests_running{{{VLLM}"{rank}"}}': "1x9" for rank in (0, 1)}
    done = judged(tmp_path, named, "workers", 1)
    assert done.returncode == 0, done.stdout + done.stderr
