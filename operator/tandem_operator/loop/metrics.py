"""The operator's own metrics."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

if TYPE_CHECKING:
    from tandem_operator.loop.refs import Ref
    from tandem_operator.plan.facts import Target

ROLES = ("prefill", "decode")


class Metrics:
    """One registry; series of resources that are gone are taken out."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconcile_seconds = Histogram(
            "tandem_operator_reconcile_seconds", "Duration of one pass.", ["outcome"], registry=self.registry
        )
        self.decisions = Counter(
            "tandem_decisions", "Decisions by action and reason.", ["action", "reason"], registry=self.registry
        )
        self.targets = Gauge(
            "tandem_ratio_target",
            "Workers that the target wants.",
            ["namespace", "resource", "role"],
            registry=self.registry,
        )
        self.status_writes = Counter("tandem_operator_status_writes", "Status writes.", registry=self.registry)

    def show_target(self, ref: Ref, target: Target) -> None:
        """What is to be, by role."""
        for role, count in zip(ROLES, (target.prefill, target.decode), strict=True):
            self.targets.labels(ref.namespace, ref.name, role).set(count)

    def forget(self, ref: Ref) -> None:
        """The resource is gone."""
        for role in ROLES:
            with suppress(KeyError):  # a resource that never had a target has no series
                self.targets.remove(ref.namespace, ref.name, role)
