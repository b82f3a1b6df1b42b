"""What a resource has an installed monitoring stack look at: PodMonitor, PrometheusRule and the dashboard. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tandem_operator.api.constants import LABEL_POOL, LABEL_RESOURCE, LABEL_ROLE
from tandem_operator.templates import burn
from tandem_operator.templates.render import render

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tandem_operator.api.spec import Spec
    from tandem_operator.templates.names import Owner

Object = dict[str, Any]
PART = "monitoring"
DASHBOARD = "dashboard"
DASHBOARD_LABEL = "grafana_dashboard"  # what Grafana's sidecar looks for
# The kind, and the project whose API it is: without it, the kind is not made.
APIS = {"PodMonitor": "the Prometheus operator", "PrometheusRule": "the Prometheus operator"}
SCRAPES_A_WINDOW = 4  # a rate needs two samples, and one may be missed


def wanted(spec: Spec) -> tuple[str, ...]:
    """The kinds that the resource asks for."""
    asked = (
        ("PodMonitor", spec.monitoring.pod_monitor),
        ("PrometheusRule", spec.monitoring.rules_),
        ("ConfigMap", spec.monitoring.dashboard),
    )
    return tuple(kind for kind, is_asked in asked if is_asked)


def name_of(kind: str, owner: Owner) -> str:
    """Name of the child of that kind."""
    return owner.child(DASHBOARD if kind == "ConfigMap" else PART)


def monitoring(owner: Owner, spec: Spec, window_s: int, labels: Mapping[str, str]) -> list[Object]:
    """The children that are asked for; `labels`: by which the Prometheus operator of this cluster selects."""
    makers = {"PodMonitor": pod_monitor, "PrometheusRule": rule, "ConfigMap": dashboard}
    return [makers[kind](owner, spec, window_s, labels) for kind in wanted(spec)]


def pod_monitor(owner: Owner, spec: Spec, window_s: int, labels: Mapping[str, str]) -> Object:  # noqa: ARG001
    """Scrapes routers and workers, with the labels that the planner reads."""
    sources = {"resource": LABEL_RESOURCE, "pool": LABEL_POOL, "role": LABEL_ROLE}
    return render(
        "podmonitor",
        metadata=owner.metadata(PART, PART, dict(labels)),
        selector={LABEL_RESOURCE: owner.name},
        interval=f"{max(1, min(15, window_s // SCRAPES_A_WINDOW))}s",
        labels={name: f"__meta_kubernetes_pod_label_{meta(label)}" for name, label in sources.items()},
    )


def meta(label: str) -> str:
    """A label's name as service discovery spells it."""
    return "".join(c if c.isalnum() else "_" for c in label)


def rule(owner: Owner, spec: Spec, window_s: int, labels: Mapping[str, str]) -> Object:  # noqa: ARG001
    """Recording rules and burn-rate alerts."""
    return render(
        "prometheusrule",
        metadata=owner.metadata(PART, PART, dict(labels)),
        groups=burn.groups(owner, spec),
    )


def dashboard(owner: Owner, spec: Spec, window_s: int, labels: Mapping[str, str]) -> Object:  # noqa: ARG001
    """The Grafana dashboard, in a ConfigMap that Grafana's sidecar finds by its label."""
    # Grafana's SDK is loaded where a dashboard is asked for, and nowhere else.
    from tandem_operator.templates.dashboard import dashboard_json  # noqa: PLC0415

    return render(
        "configmap",
        metadata=owner.metadata(DASHBOARD, PART, {DASHBOARD_LABEL: "1"}),
        data={f"{owner.namespace}-{owner.name}.json": dashboard_json(owner, spec.slo)},
    )
