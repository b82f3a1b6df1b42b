"""The operator's own metrics."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

if TYPE_CHECKING:
    from tandem_operator.api.status import Status
    from tandem_operator.loop.refs import Ref
    from tandem_operator.plan.facts import Target

ROLES = ("prefill", "decode")
OF = ("namespace", "resource")
Series = tuple[Gauge, tuple[str, ...]]


class Metrics:
    """One registry; series of resources that are gone are taken out."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconcile_seconds = Histogram(
            "tandem_operator_reconcile_seconds", "Duration of one pass.", ["outcome"], registry=self.registry
        )
        self.decisions = Counter(
            "tandem_decisions", "Decisions by action and reason.", [*OF, "action", "reason"], registry=self.registry
        )
        self.decision_info = Gauge(
            "tandem_decision_info", "The decision that stands.", [*OF, "action", "reason"], registry=self.registry
        )
        self.condition_info = Gauge(
            "tandem_condition_info",
            "The conditions of the resource.",
            [*OF, "type", "status", "reason"],
            registry=self.registry,
        )
        self._shown: dict[Ref, set[Series]] = {}  # info series by resource: what is no more so is taken out
        self.targets = Gauge(
            "tandem_ratio_target",
            "Workers that the target wants.",
            [*OF, "role"],
            registry=self.registry,
        )
        self.rdma_shared = Gauge(
            "tandem_operator_rdma_shared",
            "Do the nodes of the named pools share their RDMA cards as asked? 1 or 0.",
            registry=self.registry,
        )
        self.drift_repairs = Counter(
            "tandem_operator_drift_repairs", "Children that somebody changed or deleted.", registry=self.registry
        )
        self.status_writes = Counter("tandem_operator_status_writes", "Status writes.", registry=self.registry)

    def show_target(self, ref: Ref, target: Target) -> None:
        """What is to be, by role."""
        for role, count in zip(ROLES, (target.prefill, target.decode), strict=True):
            self.targets.labels(ref.namespace, ref.name, role).set(count)

    def show_status(self, ref: Ref, status: Status) -> None:
        """The decision that stands, and the conditions: why the ratio is as it is, for dashboards and alerts."""
        of = (ref.namespace, ref.name)
        shown: set[Series] = {(self.condition_info, (*of, c.type, c.status, c.reason)) for c in status.conditions}
        if status.decision is not None:
            shown.add((self.decision_info, (*of, status.decision.action, status.decision.reason)))
        self._show(ref, shown)

    def forget(self, ref: Ref) -> None:
        """The resource is gone."""
        self._show(ref, set())
        del self._shown[ref]
        for role in ROLES:
            with suppress(KeyError):  # a resource that never had a target has no series
                self.targets.remove(ref.namespace, ref.name, role)
        self.decisions.remove_by_labels(dict(zip(OF, (ref.namespace, ref.name), strict=True)))

    def _show(self, ref: Ref, shown: set[Series]) -> None:
        before = self._shown.get(ref, set())
        for gauge, labels in before - shown:
            gauge.remove(*labels)
        for gauge, labels in shown - before:
            gauge.labels(*labels).set(1)
        self._shown[ref] = shown
