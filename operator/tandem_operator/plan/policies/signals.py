"""The figures that these planners scale on, from windows of metrics. None where a window does not know them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tandem_operator.plan.facts import Role

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from tandem_operator.plan.facts import Window


@dataclass(frozen=True, slots=True)
class Traffic:
    """Mean demand over an interval; `computed_share`: prompt tokens that no prefix cache saved."""

    rate: float
    prompt_tokens: float
    output_tokens: float
    computed_share: float

    @property
    def context_tokens(self) -> float:
        """Mean context of a decode step: the prompt and half of the answer."""
        return self.prompt_tokens + self.output_tokens / 2


def traffic(windows: Sequence[Window]) -> Traffic | None:
    """The mean of what the windows know; None when one of the three figures is in none of them."""
    rate = mean([w.arrival_rate for w in windows])
    prompt, output = mean([w.prompt_tokens for w in windows]), mean([w.output_tokens for w in windows])
    if rate is None or prompt is None or output is None:
        return None
    return Traffic(rate, prompt, output, computed_share(windows))


def computed_share(windows: Sequence[Window]) -> float:
    """Prompt tokens computed over prompt tokens of finished requests, 0..1; 1 where it is not known."""
    known = [
        (w.prefill.tokens_rate, w.request_rate * w.prompt_tokens)
        for w in windows
        if w.prefill.tokens_rate is not None and w.request_rate is not None and w.prompt_tokens is not None
    ]
    asked = sum(tokens for _, tokens in known)
    return min(sum(computed for computed, _ in known) / asked, 1.0) if asked > 0 else 1.0


def mean(values: Sequence[float | None]) -> float | None:
    """The mean of the known values; None for none."""
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def utilisation(window: Window) -> float | None:
    """Busy share of a prefill worker, 0..1: what a GPU-utilisation target sees."""
    if window.prefill.busy is None or not window.prefill_workers:
        return None
    return min(window.prefill.busy / window.prefill_workers, 1.0)


def running(window: Window) -> float | None:
    """Requests that one decode worker runs, averaged over time and workers (`num_requests_running`)."""
    use = window.decode
    if use.busy is None or use.tokens_rate is None or use.steps_rate is None or not window.decode_workers:
        return None
    return use.tokens_rate / use.steps_rate * use.busy / window.decode_workers if use.steps_rate > 0 else 0.0


def mean_step_s(windows: Sequence[Window]) -> float | None:
    """Mean ITL: busy seconds over steps."""
    busy, steps = mean([w.decode.busy for w in windows]), mean([w.decode.steps_rate for w in windows])
    return busy / steps if busy is not None and steps else None


def mean_prompt_s(windows: Sequence[Window]) -> float | None:
    """Mean service time of a prompt: prefill's busy seconds over finished requests."""
    busy, rate = mean([w.prefill.busy for w in windows]), mean([w.request_rate for w in windows])
    return busy / rate if busy is not None and rate else None


def workers(window: Window, role: Role) -> int | None:
    """Serving workers of the role when the window closed."""
    return window.prefill_workers if role is Role.PREFILL else window.decode_workers


def within(history: Sequence[Window], now: datetime, seconds: float) -> Sequence[Window]:
    """The windows of the last `seconds`."""
    return [w for w in history if (now - w.at).total_seconds() < seconds]


def closed_interval(history: Sequence[Window], seconds: int) -> Sequence[Window]:
    """The windows of the last whole adjustment interval: those between the two newest multiples of `seconds`.

    A planner that ticks every 180 s decides on this and keeps its decision until the next multiple.
    """
    if not history:
        return ()
    number = int(history[-1].at.timestamp() // seconds)
    return [w for w in history if int(w.at.timestamp() - 1e-6) // seconds == number - 1]


def is_due(history: Sequence[Window], seconds: int) -> bool:
    """Did the newest window cross a multiple of `seconds`?"""
    if len(history) < 2:
        return False
    before, now = (int(w.at.timestamp() // seconds) for w in history[-2:])
    return before != now


def newest_context(history: Sequence[Window]) -> float | None:
    """Mean context of a decode step by the newest window that knows the lengths."""
    for window in reversed(history):
        if window.prompt_tokens is not None and window.output_tokens is not None:
            return window.prompt_tokens + window.output_tokens / 2
    return None
