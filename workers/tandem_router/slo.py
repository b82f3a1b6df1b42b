"""Did a request meet its targets? Pure; seconds throughout."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Targets:
    """The resource's SLO."""

    ttft_s: float
    tpot_s: float


class Met(StrEnum):
    """Which targets a request met; the values of `tandem_router_slo_requests_total{met}`."""

    BOTH = "both"
    TTFT = "ttft"
    TPOT = "tpot"
    NONE = "none"


def tpot(first_at: float, last_at: float, output_tokens: int) -> float | None:
    """Mean time per output token after the first; None with fewer than two tokens."""
    return (last_at - first_at) / (output_tokens - 1) if output_tokens > 1 else None


def judge(ttft_s: float, tpot_s: float | None, targets: Targets) -> Met:
    """A stream's verdict; one with a single output token (`tpot_s` None) meets the TPOT target."""
    in_time = ttft_s <= targets.ttft_s
    in_pace = tpot_s is None or tpot_s <= targets.tpot_s
    if in_time:
        return Met.BOTH if in_pace else Met.TTFT
    return Met.TPOT if in_pace else Met.NONE


def judge_whole(total_s: float, output_tokens: int, targets: Targets) -> Met:
    """An answer that was not streamed: its whole time is held against both targets together."""
    allowed = targets.ttft_s + targets.tpot_s * max(output_tokens - 1, 0)
    return Met.BOTH if total_s <= allowed else Met.NONE
