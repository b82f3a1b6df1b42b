"""What Prometheus would scrape from a worker."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Totals since the start; busy in seconds. Kept by the role that the worker had at the time."""

    prefill_busy: float = 0.0
    prefill_tokens: float = 0.0
    decode_busy: float = 0.0
    decode_steps: float = 0.0
    decode_tokens: float = 0.0

    def add(self, part: Counters) -> None:
        """Total += part."""
        self.prefill_busy += part.prefill_busy
        self.prefill_tokens += part.prefill_tokens
        self.decode_busy += part.decode_busy
        self.decode_steps += part.decode_steps
        self.decode_tokens += part.decode_tokens
