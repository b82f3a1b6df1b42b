"""Was it true? A load's figures against the resource's SLO."""

from __future__ import annotations

from dataclasses import dataclass

from e2e.load import Result, Summary, summary


@dataclass(frozen=True, slots=True)
class Targets:
    """The resource's SLO."""

    ttft_ms: int
    tpot_ms: int
    percentile: int

    def met_by(self, seen: Summary, role: str) -> bool:
        """Does the role's own figure meet its target? Prefill answers for TTFT, decode for TPOT."""
        return seen.ttft_ms <= self.ttft_ms if role == "prefill" else seen.tpot_ms <= self.tpot_ms

    def figures(self, results: list[Result], start: float, end: float) -> Summary:
        """Of the requests that were due in [start, end); what never came counts as infinitely late."""
        return summary(results, self.percentile, self.ttft_ms, self.tpot_ms, start_s=start, end_s=end)
