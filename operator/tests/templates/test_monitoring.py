"""Rules that fire when they should, by Prometheus' own judgement, and a dashboard that can be shipped."""

from __future__ import annotations

import json
import subprocess

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_operator.templates import burn
from tandem_operator.templates.dashboard import dashboard_json
from tandem_operator.templates.monitoring import monitoring, wanted
from tandem_operator.templates.names import Owner

from .test_children import OWNER, spec

ALL = {"podMonitor": True, "rules": True, "dashboard": True}


def promtool(*words):
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def series(met, per_minute):
    labels = f'namespace="serving",resource="chat",met="{met}"'
    return {"series": f"tandem_router_slo_requests_total{{{labels}}}", "values": f"0+{per_minute}x480"}


ARRIVALS = {
    "series": 'tandem_router_arrivals_total{namespace="serving",resource="chat"}',
    "values": "0+1x480",
}


@pytest.mark.parametrize(
    ("percentile", "met", "missed", "pages"),
    [
        pytest.param(95, 100, 0, 0, id="all is well"),
        pytest.param(95, 96, 4, 0, id="within the budget"),
        pytest.param(95, 60, 40, 1, id="a burn of 8: the slow page alone"),
        pytest.param(95, 20, 80, 2, id="a burn of 16: both pages"),
        pytest.param(50, 60, 40, 0, id="half may miss"),
        pytest.param(50, 5, 95, 2, id="a burn of 14.4 is more than all requests: the page fires all the same"),
        pytest.param(95, 0, 0, 0, id="no traffic is no miss"),
    ],
)
def test_pages_by_what_was_missed(tmp_path, percentile, met, missed, pages):
    slo = {"ttftMilliseconds": 500, "tpotMilliseconds": 40, "percentile": percentile}
    rules = {"groups": burn.groups(OWNER, spec(slo=slo))}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    firing = {"expr": 'count(ALERTS{alertstate="firing",severity="page"}) or vector(0)', "eval_time": "7h"}
    case = {
        "interval": "1m",
        "input_series": [series("both", met), series("ttft", missed), ARRIVALS],
        "promql_expr_test": [{**firing, "exp_samples": [{"labels": "{}", "value": pages}]}],
    }
    about = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [case]}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(about))
    promtool("test", "rules", str(tmp_path / "test.yaml"))


@settings(max_examples=50, deadline=None)
@given(percentile=st.integers(50, 99), burned=st.sampled_from(burn.BURNS))
def test_every_alert_can_fire_and_none_fires_within_the_budget(percentile, burned):
    budget = 1 - percentile / 100
    rule = burn.burn_alert(OWNER, burned, budget, percentile)
    bounds = {float(part.rpartition("> ")[2]) for part in rule["expr"].split(" and ")}
    assert all(round(budget, 6) <= bound < 1 for bound in bounds)


@pytest.mark.parametrize(
    ("asked", "kinds"),
    [
        pytest.param({}, (), id="nothing"),
        pytest.param({"podMonitor": True}, ("PodMonitor",), id="a PodMonitor"),
        pytest.param(ALL, ("PodMonitor", "PrometheusRule", "ConfigMap"), id="all"),
    ],
)
def test_children_by_what_is_asked_for(asked, kinds):
    found = monitoring(OWNER, spec(monitoring=asked), 60, {"release": "prometheus"})
    assert tuple(child["kind"] for child in found) == kinds == wanted(spec(monitoring=asked))
    for child in found:
        labels = child["metadata"]["labels"]
        assert labels["tandem.dev/resource"] == "chat"
        assert (labels.get("release") == "prometheus") == (child["kind"] != "ConfigMap")
        assert labels.get("grafana_dashboard") == ("1" if child["kind"] == "ConfigMap" else None)


def test_a_suspended_resource_is_not_missed():
    names = {rule["alert"] for rule in burn.groups(OWNER, spec(suspend=True))[1]["rules"]}
    assert names == {"TandemSLOBurn"}


def test_the_pod_monitor_sets_the_labels_that_the_planner_reads():
    (monitor,) = monitoring(OWNER, spec(monitoring={"podMonitor": True}), 20, {})
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert {r["targetLabel"] for r in endpoint["relabelings"]} == {"resource", "pool", "role"}
    assert endpoint["relabelings"][0]["sourceLabels"] == ["__meta_kubernetes_pod_label_tandem_dev_resource"]
    assert endpoint["interval"] == "5s", "a window of 20 s holds four samples"


def boards():
    slo = spec().slo
    return [json.loads(dashboard_json(Owner(name, "serving", "u"), slo)) for name in ("chat", "code")]


def test_a_dashboards_uid_is_its_resources_own_and_stays():
    chat, code = boards()
    assert chat["uid"] != code["uid"]
    assert chat["uid"] == json.loads(dashboard_json(Owner("chat", "serving", "other"), spec().slo))["uid"]
    assert max(len(chat["uid"]), len(code["uid"])) <= 40, "Grafana's bound"


def test_every_panel_and_query_asks_the_datasource_of_the_variable():
    chat, _ = boards()
    panels = [panel for panel in chat["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 10
    for panel in panels:
        refs = [query["refId"] for query in panel["targets"]]
        assert len(set(refs)) == len(refs)
        for holder in (panel, *panel["targets"]):
            assert holder["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    values = {v["name"]: v["query"] for v in chat["templating"]["list"]}
    assert values["ttft_seconds"] == "0.5"
    assert values["objective"] == "0.95"
    used = set("".join(q["expr"] for p in panels for q in p["targets"]).replace("$", " $").split())
    assert any("$namespace" in word for word in used)
