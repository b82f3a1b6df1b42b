"""The Grafana dashboard of a resource: what clients get beside the SLO, the budget, the ratio, and why it is so.

All resources have the same panels; what differs (names, targets) are constants of the dashboard, so that the panels
are built once.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any

from grafana_foundation_sdk.builders import dashboard as sdk
from grafana_foundation_sdk.builders import prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DataSourceRef, GridPos
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tandem_operator.api.spec_rebalance import Slo
    from tandem_operator.templates.names import Owner

Object = dict[str, Any]
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
MINE = 'namespace="$namespace",resource="$resource"'
BY = "namespace, resource"
WIDTH, HEIGHT = 12, 8
RATE = "$__rate_interval"
CONSTANTS = ("namespace", "resource", "ttft_seconds", "tpot_seconds", "objective")


@dataclass(frozen=True, slots=True)
class Chart:
    """One panel: its title, what it tells, a unit, and its queries by legend."""

    title: str
    about: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "lines"


def quantiles(metric: str, target: str) -> tuple[tuple[str, str], ...]:
    """p50, p95, p99 of a router's histogram, and the SLO's line."""
    buckets = f"sum by (le) (rate(tandem_router_{metric}_seconds_bucket{{{MINE}}}[{RATE}]))"
    lines = tuple((f"p{p}", f"histogram_quantile({p / 100}, {buckets})") for p in (50, 95, 99))
    return (*lines, ("SLO", f"vector(${target})"))


def judged(window: str, met: str = "") -> str:
    """Requests that were judged, or that met what `met` says, per second."""
    return f"sum(rate(tandem_router_slo_requests_total{{{MINE}{met}}}[{window}]))"


def attained(window: str) -> str:
    """The share of requests that met both targets."""
    both = ',met="both"'
    return f"{judged(window, both)} / {judged(window)}"


def by_role(metric: str) -> str:
    """A worker counter's rate, by the role that its worker has."""
    return f"sum by (role) (rate({metric}{{{MINE}}}[{RATE}]))"


def share_of_ttft(seconds: str) -> str:
    """So many of these seconds for each of the time that requests waited for their first token in the workers."""
    return " / ".join(
        f"sum(rate({series}{{{MINE}}}[{RATE}]))" for series in (seconds, "tandem_time_to_first_token_seconds_sum")
    )


CLIENTS = (
    Chart(
        "Time to first token",
        "At the router, as clients see it.",
        "s",
        quantiles("time_to_first_token", "ttft_seconds"),
    ),
    Chart(
        "Time per output token",
        "Mean over a request, after its first token.",
        "s",
        quantiles("time_per_output_token", "tpot_seconds"),
    ),
    Chart(
        "Requests that met both targets",
        "Attainment, beside what the SLO asks for.",
        "percentunit",
        (("attainment", attained(RATE)), ("SLO", "vector($objective)")),
    ),
    Chart(
        "Error budget left",
        "Over the range shown: 1 is all of it, below 0 the SLO is broken.",
        "percentunit",
        (("left", f"1 - (1 - {attained('$__range')}) / (1 - $objective)"),),
        kind="stat",
    ),
    Chart(
        "Requests",
        "Per second; code 499 is a client that left, 502 a stream that broke.",
        "reqps",
        (
            ("arrive", f"sum(rate(tandem_router_arrivals_total{{{MINE}}}[{RATE}]))"),
            ("ended {{code}} {{path}}", f"sum by (code, path) (rate(tandem_router_requests_total{{{MINE}}}[{RATE}]))"),
        ),
    ),
    Chart(
        "Oldest request without a first token",
        "A queue that grows shows here before it shows in any quantile.",
        "s",
        (("waits", f"max(tandem_router_oldest_waiting_seconds{{{MINE}}})"),),
    ),
)
RATIO = (
    Chart(
        "Workers by role",
        "Serving, as the routers see them, and what the target wants.",
        "short",
        (
            ("serving {{role}}", f"max by (role) (tandem_router_workers{{{MINE}}})"),
            ("target {{role}}", f"max by (role) (tandem_ratio_target{{{MINE}}})"),
        ),
    ),
    Chart(
        "Decisions",
        "How often the planner decided what, and why.",
        "short",
        (("{{action}} {{reason}}", f"sum by (action, reason) (increase(tandem_decisions_total{{{MINE}}}[{RATE}]))"),),
    ),
    Chart(
        "Why the ratio is as it is",
        "The decision that stands; docs/reference/conditions.md explains each reason.",
        "short",
        (("", f"max by (action, reason) (tandem_decision_info{{{MINE}}})"),),
        kind="table",
    ),
    Chart(
        "Conditions",
        "As in the resource's status.",
        "short",
        (("", f"max by (type, status, reason) (tandem_condition_info{{{MINE}}})"),),
        kind="table",
    ),
)
WORKERS = (
    Chart(
        "Busy workers",
        "Busy seconds per second, over the workers of a role.",
        "short",
        (
            ("prefill", f"sum(rate(tandem_prefill_busy_seconds_total{{{MINE}}}[{RATE}]))"),
            ("decode", f"sum(rate(tandem_decode_busy_seconds_total{{{MINE}}}[{RATE}]))"),
        ),
    ),
    Chart(
        "Tokens",
        "Prompt tokens computed and tokens emitted per second, by role.",
        "short",
        (
            ("prefill by {{role}}", by_role("tandem_prefill_tokens_total")),
            ("decode by {{role}}", by_role("tandem_decode_tokens_total")),
        ),
    ),
    Chart(
        "Queues",
        "Requests that wait in workers, and the share of their KV cache in use.",
        "short",
        (
            ("waiting {{role}}", f"sum by (role) (tandem_num_requests_waiting{{{MINE}}})"),
            ("KV in use {{role}}", f"max by (role) (tandem_kv_cache_usage_perc{{{MINE}}})"),
        ),
    ),
    Chart(
        "KV transfer",
        "Bytes of KV cache received, and the bandwidth of a single transfer.",
        "Bps",
        (
            ("received", f'sum(rate(tandem_kv_transfer_bytes_total{{{MINE},direction="received"}}[{RATE}]))'),
            ("bandwidth", f"avg(tandem_transfer_bandwidth_bytes_per_second{{{MINE}}})"),
        ),
    ),
    Chart(
        "KV transfer's share of TTFT",
        "Of the workers' time to first token: what transfers should take by their shapes and the bandwidth, how long "
        "pages were under way (both mostly hidden behind computing), and what the computing did not hide.",
        "percentunit",
        (
            ("expected", share_of_ttft("tandem_kv_transfer_expected_seconds_total")),
            ("under way", share_of_ttft("tandem_kv_transfer_busy_seconds_total")),
            ("not hidden", share_of_ttft("tandem_kv_transfer_seconds_sum")),
        ),
    ),
)
ROWS = (("What clients get", CLIENTS), ("The ratio, and why", RATIO), ("Workers", WORKERS))


def dashboard_json(owner: Owner, slo: Slo) -> str:
    """The resource's dashboard. Its uid comes from its names alone: links to it last."""
    digest = hashlib.sha256(f"{owner.namespace}/{owner.name}".encode()).hexdigest()[:24]
    values = (owner.namespace, owner.name, *(ms / 1000 for ms in (slo.ttft_milliseconds, slo.tpot_milliseconds)))
    constants = dict(zip(CONSTANTS, (*values, slo.percentile / 100), strict=True))
    own = {"uid": f"tandem-{digest}", "title": f"Tandem: {owner.namespace}/{owner.name}"}
    variables = [with_value(v, constants) for v in panels()["templating"]["list"]]
    return json.dumps({**panels(), **own, "templating": {"list": variables}}, separators=(",", ":"))


def with_value(variable: Object, constants: Mapping[str, object]) -> Object:
    """A constant with its value; the datasource's variable as it is."""
    if variable["name"] not in constants:
        return variable
    value = str(constants[variable["name"]])
    return {**variable, "query": value, "current": {"text": value, "value": value}}


@cache
def panels() -> Object:
    """All that the dashboards have in common."""
    board = sdk.Dashboard("Tandem").tags(["tandem"]).refresh("30s").time("now-3h", "now").timezone("browser").readonly()
    board.with_variable(sdk.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    for name in CONSTANTS:
        board.with_variable(sdk.ConstantVariable(name).value(""))
    top, number = 0, 0
    for title, charts in ROWS:
        board.with_row(sdk.Row(title).grid_pos(GridPos(h=1, w=2 * WIDTH, x=0, y=top)))
        top += 1
        for index, chart in enumerate(charts):
            at = GridPos(h=HEIGHT, w=WIDTH, x=WIDTH * (index % 2), y=top + HEIGHT * (index // 2))
            number += 1
            board.with_panel(panel(chart).id(number).grid_pos(at))
        top += HEIGHT * ((len(charts) + 1) // 2)
    built: Object = json.loads(JSONEncoder().encode(board.build()))
    # An option that is null is not one that is left out: Grafana would take it for a choice.
    return {**built, "panels": [{k: v for k, v in p.items() if v is not None} for p in built["panels"]]}


def panel(chart: Chart) -> Any:
    """One chart as a panel; panel and queries name the datasource by its variable."""
    makers: dict[str, Any] = {"lines": timeseries.Panel, "stat": stat.Panel, "table": table.Panel}
    found = makers[chart.kind]().title(chart.title).description(chart.about).unit(chart.unit).datasource(SOURCE)
    for ref, (legend, expression) in zip(ascii_uppercase, chart.queries, strict=False):
        query = prometheus.Dataquery().expr(expression).legend_format(legend).datasource(SOURCE).ref_id(ref)
        if chart.kind == "table":
            query.format(PromQueryFormat.TABLE).instant()
        found.with_target(query)
    return found
