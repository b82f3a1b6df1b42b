"""What rules and dashboards ask for exists: held against what router, worker and operator really export."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from prometheus_client import generate_latest

from tandem_operator.api.spec_rebalance import Slo
from tandem_operator.api.status import Condition, DecisionStatus, Status
from tandem_operator.edges.query import branches
from tandem_operator.loop.metrics import Metrics as OperatorMetrics
from tandem_operator.loop.refs import Ref
from tandem_operator.plan.facts import Target
from tandem_operator.templates import burn
from tandem_operator.templates.dashboard import dashboard_json
from tandem_operator.templates.names import Owner
from tandem_router.metrics import Metrics as RouterMetrics
from tandem_router.slo import Targets

OWNER = Owner("chat", "serving", "uid-1")
NOW = "2026-01-01T00:00:00Z"


def slo(ttft=500, tpot=40):
    return Slo(ttft_milliseconds=ttft, tpot_milliseconds=tpot)


def spec(**targets):
    return SimpleNamespace(slo=slo(**targets), suspend=False)


def router_text(ttft=500, tpot=40):
    metrics = RouterMetrics(Targets(ttft / 1000, tpot / 1000))
    metrics.ended(200, "disaggregated")
    return metrics.text().decode()


def operator_text():
    metrics, ref = OperatorMetrics(), Ref("serving", "chat")
    target = {"pools": {}, "roles": {"prefill": 1, "decode": 1}}
    decision = {"id": "1", "target": target, "action": "Hold", "reason": "NoTraffic", "message": "", "at": NOW}
    ready = {"type": "Ready", "status": "True", "reason": "Serving", "message": ""}
    ready |= {"observedGeneration": 1, "lastTransitionTime": NOW}
    status = Status(decision=DecisionStatus(**decision), conditions=[Condition(**ready)])
    metrics.decisions.labels("serving", "chat", "Hold", "NoTraffic").inc()
    metrics.show_target(ref, Target({}, 1, 1))
    metrics.show_status(ref, status)
    return generate_latest(metrics.registry).decode()


def worker_names():
    """The worker's collectors need a loaded model; their names are read where they are made."""
    text = (Path(__file__).parents[2] / "workers/tandem_worker/metrics.py").read_text(encoding="utf-8")
    names = set(re.findall(r'"(tandem_\w+)"', text))
    histograms = {
        f"{name}_{part}" for name in names if name.endswith("_seconds") for part in ("bucket", "sum", "count")
    }
    return names | {f"{name}_total" for name in names} | histograms


@pytest.fixture(scope="module")
def exported():
    text = router_text() + operator_text()
    return {line.split("{")[0].split(" ")[0] for line in text.splitlines() if line[:1] != "#"} | worker_names()


def dashboard_queries():
    board = json.loads(dashboard_json(OWNER, slo()))
    constants = {v["name"]: v["query"] for v in board["templating"]["list"]} | {
        "__rate_interval": "1m",
        "__range": "3h",
    }
    for panel in board["panels"]:
        for query in panel.get("targets", ()):
            yield re.sub(r"\$(\w+)", lambda found: constants[found[1]], query["expr"])


def all_queries():
    rules = [rule["expr"] for group in burn.groups(OWNER, spec()) for rule in group["rules"]]
    return [*dashboard_queries(), *rules, *branches(60, "serving").values()]


def test_every_metric_that_is_asked_for_is_exported(exported):
    asked = {name for query in all_queries() for name in re.findall(r"\btandem_\w+", query)}
    assert asked, "there are queries"
    assert asked - exported == set()


def test_prometheus_can_read_every_query(tmp_path):
    rules = [{"record": f"tandem:query:{n}", "expr": query} for n, query in enumerate(all_queries())]
    groups = [{"name": "queries", "rules": rules}, *burn.groups(OWNER, spec())]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": groups}))
    done = subprocess.run(
        ["promtool", "check", "rules", str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("ttft", [1, 25, 500, 1000, 12_345, 3_600_000])
def test_a_target_is_a_bucket_of_the_router_by_the_same_name(ttft):
    assert f"le={burn.quoted(ttft)}" in router_text(ttft=ttft)


def test_what_is_no_more_so_is_no_more_exported():
    metrics, ref = OperatorMetrics(), Ref("serving", "chat")
    metrics.decisions.labels("serving", "chat", "Hold", "NoTraffic").inc()
    ready = {"type": "Ready", "status": "True", "reason": "Serving", "message": ""}
    ready |= {"observedGeneration": 1, "lastTransitionTime": NOW}
    metrics.show_status(ref, Status(conditions=[Condition(**ready)]))
    assert 'reason="Serving"' in generate_latest(metrics.registry).decode()
    metrics.show_status(ref, Status(conditions=[Condition(**ready | {"reason": "Suspended"})]))
    assert 'reason="Serving"' not in generate_latest(metrics.registry).decode()
    metrics.forget(ref)
    assert "chat" not in generate_latest(metrics.registry).decode()
