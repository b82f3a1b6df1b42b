"""`tandem status`: roles, latencies against targets and the decision, in the words of the conditions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from tandem_operator.api.v1alpha1 import DisaggregatedInference

SHOWN = (
    "Ready",
    "Stalled",
    "MetricsAvailable",
    "SLOMet",
    "ScalingLimited",
    "Rebalancing",
    "KVTransferReady",
    "ModeChosen",
)


def overview(resources: list[DisaggregatedInference]) -> Table:
    """One line a resource."""
    table = Table(
        "NAME", "READY", "PREFILL:DECODE", "TTFT / TARGET", "TPOT / TARGET", "ATTAINMENT", "DECISION", box=None
    )
    for resource in resources:
        status, slo = resource.status, resource.spec.slo
        ready, seen = status.condition("Ready"), status.observed
        table.add_row(
            resource.metadata.name,
            ready.status if ready else "Unknown",
            status.ratio or "-",
            against(seen.ttft_milliseconds if seen else None, slo.ttft_milliseconds),
            against(seen.tpot_milliseconds if seen else None, slo.tpot_milliseconds),
            f"{seen.attainment_percent} %" if seen and seen.attainment_percent else "-",
            f"{status.decision.action} {status.decision.reason}" if status.decision else "-",
        )
    return table


def against(seen_ms: int | None, target_ms: int) -> str:
    """`1,020 / 1,500 ms`; `-` where nothing is known."""
    return f"{'-' if seen_ms is None else f'{seen_ms:,}'} / {target_ms:,} ms"


def details(resource: DisaggregatedInference) -> list[str]:
    """What stands below one resource's line: pools, the decision with its alternatives, and the conditions."""
    status = resource.status
    lines = [f"pool {name}: {pool.ready}/{pool.desired} ready" for name, pool in sorted(status.pools.items())]
    if (decision := status.decision) is not None:
        target = decision.target.roles
        lines.append(f"decision {decision.id} at {decision.at.isoformat()}: {decision.action} {decision.reason}")
        lines.append(f"  target prefill {target.prefill}, decode {target.decode}; {decision.message}")
        for other in decision.alternatives:
            if other.rejected:
                roles = other.target.roles
                lines.append(f"  not {roles.prefill}:{roles.decode} ({other.gpus} GPUs): {other.rejected}")
    conditions = [found for kind in SHOWN if (found := status.condition(kind)) is not None]
    return [*lines, *(f"{c.type}={c.status} {c.reason}: {c.message}" for c in conditions)]
