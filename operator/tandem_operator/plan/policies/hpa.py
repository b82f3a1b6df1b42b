"""The HorizontalPodAutoscaler on one metric a role.

Source: kubernetes.io, "Horizontal Pod Autoscaling", algorithm details and default behaviour; kubernetes/kubernetes
pkg/controller/podautoscaler/{replica_calculator,horizontal}.go.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from tandem_operator.plan.facts import Role
from tandem_operator.plan.policies.base import bounds, desired, go, hold, ready, start
from tandem_operator.plan.policies.signals import running, utilisation, within, workers

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from tandem_operator.plan.facts import Decision, Observed, Window

TOLERANCE = 0.1  # --horizontal-pod-autoscaler-tolerance
DOWN_STABILIZATION_S = 300  # behavior.scaleDown.stabilizationWindowSeconds
UP_PODS = 4  # behavior.scaleUp: the larger of 4 pods and 100 % every 15 s


def recommend(current: int, value: float | None, measured: int, missing: int, target: float) -> int | None:
    """Replicas by one metric; None when no pod reports it (the controller then leaves the count alone).

    `value`: mean over the `measured` pods. `missing`: pods that are ready without a metric, or not ready yet: they
    count as 0 % when scaling up and as 100 % of the target when scaling down; a ratio that turns round or comes within
    the tolerance by that leaves the count.
    """
    if value is None or measured == 0:
        return None
    ratio = value / target
    if missing == 0:
        return current if abs(ratio - 1) <= TOLERANCE else ceil(ratio * measured - 1e-9)
    total = value * measured + (missing * target if ratio < 1 else 0.0)
    careful = total / (measured + missing) / target
    if abs(careful - 1) <= TOLERANCE or (ratio < 1) != (careful < 1):
        return current
    count = ceil(careful * (measured + missing) - 1e-9)
    return current if (count > current) != (careful > 1) else count


@dataclass(frozen=True, slots=True)
class Hpa:
    """Prefill by GPU utilisation, decode by running requests a worker (its GPU is busy whatever the load).

    The targets are shares and counts of one pod; `running_target` comes from a profile.
    """

    utilisation_target: float
    running_target: float
    name: str = "HPA"

    def __call__(self, seen: Observed, now: datetime) -> Decision:
        """Both roles on their own, as two HPAs would."""
        if (first := start(seen)) is not None:
            return first
        if not seen.history:
            return hold(seen, "NoMetrics", "no window yet")
        counts = {role: self.scale(seen, now, role) for role in (Role.PREFILL, Role.DECODE)}
        return go(seen, counts[Role.PREFILL], counts[Role.DECODE], f"{self.name}: {words(seen.history[-1])}")

    def scale(self, seen: Observed, now: datetime, role: Role) -> int:
        """The recommendation after stabilisation and the rate of change."""
        current = desired(seen, role)
        newest = self.of_window(seen.history[-1], role, current, max(current - ready(seen, role), 0))
        if newest is None:
            return current
        past = [self.of_window(w, role, workers(w, role) or current, 0) for w in within(seen.history, now, self.calm_s)]
        stable = max([newest, *(p for p in past if p is not None)])
        low, high = bounds(seen.limits, role)
        count = newest if newest >= current else min(stable, current)
        return min(max(count, low), high, current + max(UP_PODS, current))

    @property
    def calm_s(self) -> float:
        """Seconds over which the highest recommendation counts before a pool shrinks."""
        return DOWN_STABILIZATION_S

    def of_window(self, window: Window, role: Role, current: int, missing: int) -> int | None:
        """What this window alone would recommend."""
        target = self.utilisation_target if role is Role.PREFILL else self.running_target
        measured = max(current - missing, 0)
        return recommend(current, signal(window, role), measured, missing, target)


def signal(window: Window, role: Role) -> float | None:
    """The role's metric of one pod."""
    return utilisation(window) if role is Role.PREFILL else running(window)


def words(window: Window) -> str:
    """The two metrics, for the message."""
    busy, run = utilisation(window), running(window)
    parts: Sequence[str] = (
        "utilisation unknown" if busy is None else f"utilisation {busy:.2f}",
        "running unknown" if run is None else f"running {run:.1f}",
    )
    return ", ".join(parts)
