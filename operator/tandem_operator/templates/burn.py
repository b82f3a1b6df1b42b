"""Recording rules and burn-rate alerts of one resource's SLO: pure, from its targets alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tandem_operator.api.spec import Spec
    from tandem_operator.templates.names import Owner

Rule = dict[str, Any]
EVERY = "30s"
# Where the SLO leaves so much budget that a burn of 14.4 needs more misses than there are requests, the alert would
# be one that cannot fire: this share of misses is enough then.
MOST_MISSED = 0.9


@dataclass(frozen=True, slots=True)
class Burn:
    """Budget spent so many times too fast, over a long window, and still so over a short one."""

    factor: float
    short: str
    long: str
    severity: str


BURNS = (
    Burn(14.4, "5m", "1h", "page"),
    Burn(6, "30m", "6h", "page"),
    Burn(3, "2h", "1d", "ticket"),
    Burn(1, "6h", "3d", "ticket"),
)
WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")


def groups(owner: Owner, spec: Spec) -> list[dict[str, Any]]:
    """The groups of the resource's PrometheusRule."""
    budget = 1 - spec.slo.percentile / 100
    alerts = [burn_alert(owner, burn, budget, spec.slo.percentile) for burn in BURNS]
    if not spec.suspend:  # nothing is scraped of what has no pods
        alerts.append(silence_alert(owner))
    return [
        {"name": f"{owner.name}-slo", "interval": EVERY, "rules": list(records(owner, spec))},
        {"name": f"{owner.name}-alerts", "interval": EVERY, "rules": alerts},
    ]


def selector(owner: Owner) -> str:
    """Label matchers of the resource's series; both names are DNS labels, so nothing needs escaping."""
    return f'namespace="{owner.namespace}",resource="{owner.name}"'


def records(owner: Owner, spec: Spec) -> Iterator[Rule]:
    """The share of requests that missed the SLO over each window, and each target's share over five minutes."""
    for window in WINDOWS:
        yield {"record": f"tandem:slo_missed:ratio_rate{window}", "expr": missed(selector(owner), window)}
    targets = (("ttft", "time_to_first_token", spec.slo.ttft_milliseconds),
               ("tpot", "time_per_output_token", spec.slo.tpot_milliseconds))  # fmt: skip
    for short, metric, target_ms in targets:
        name = f"tandem_router_{metric}_seconds"
        yield {
            "record": f"tandem:{short}_within_target:ratio_rate5m",
            "expr": f"{total(f'{name}_bucket', selector(owner) + f',le={quoted(target_ms)}', '5m')}"
            f" / {total(f'{name}_count', selector(owner), '5m')}",
        }


def quoted(target_ms: int) -> str:
    """The target as the router writes its bucket's bound; it makes each target a bound of its own."""
    return f'"{float(round(target_ms / 1000, 9))}"'


def missed(matchers: str, window: str) -> str:
    """1 - (requests that met both targets) / (all that were judged); no value without traffic."""
    metric = "tandem_router_slo_requests_total"
    met = total(metric, matchers + ',met="both"', window)
    return f"1 - {met} / {total(metric, matchers, window)}"


def total(metric: str, matchers: str, window: str) -> str:
    """The rate of a counter over all routers."""
    return f"sum by (namespace, resource) (rate({metric}{{{matchers}}}[{window}]))"


def burn_alert(owner: Owner, burn: Burn, budget: float, percentile: int) -> Rule:
    """One pair of windows: the long one says that it matters, the short one that it is not over."""
    bound = round(min(burn.factor * budget, MOST_MISSED), 6)
    over = [f"tandem:slo_missed:ratio_rate{w}{{{selector(owner)}}} > {bound}" for w in (burn.long, burn.short)]
    return {
        "alert": "TandemSLOBurn",
        "expr": " and ".join(over),
        "labels": {"severity": burn.severity, "window": burn.long},
        "annotations": {
            "summary": f"{owner.namespace}/{owner.name} misses its SLO",
            "description": "{{ $value | humanizePercentage }} of the requests of the last "
            f"{burn.long} missed a target; {percentile} % are to meet both. status.decision says why and what is done.",
        },
    }


def silence_alert(owner: Owner) -> Rule:
    """No router is scraped: the planner holds, and nobody knows what clients get."""
    return {
        "alert": "TandemNoMetrics",
        "expr": f"absent(tandem_router_arrivals_total{{{selector(owner)}}})",
        "for": "10m",
        "labels": {"severity": "ticket", "namespace": owner.namespace, "resource": owner.name},
        "annotations": {
            "summary": f"Prometheus has no metrics of {owner.namespace}/{owner.name}",
            "description": "No router of the resource is scraped, so the planner holds its target. Look at the pods, "
            "and at Prometheus' targets.",
        },
    }
