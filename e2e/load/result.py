"""One request as its client saw it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """How a request ended."""

    OK = "ok"
    FAILED = "failed"  # refused, broken off, or timed out
    UNFINISHED = "unfinished"  # still open when the load ended


@dataclass(slots=True)
class Result:
    """Seconds since the load began; None: it did not come to that. `code`: HTTP status, 0 without an answer."""

    number: int
    intended_s: float
    sent_s: float | None = None
    first_s: float | None = None
    last_s: float | None = None
    status: Status = Status.UNFINISHED
    code: int = 0
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    kv_bytes: int | None = None
    path: str = ""
    worker: str = ""
    prefill_worker: str = ""
    error: str = ""

    @property
    def ttft_s(self) -> float | None:
        """From the time it was due, so that a late sender hides nothing."""
        return None if self.first_s is None else self.first_s - self.intended_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first; None with fewer than two, or when it did not finish."""
        if self.first_s is None or self.last_s is None or self.output_tokens is None or self.output_tokens < 2:
            return None
        return (self.last_s - self.first_s) / (self.output_tokens - 1)

    def record(self) -> dict[str, Any]:
        """A line of the JSON file."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**fields, "ttft_s": self.ttft_s, "tpot_s": self.tpot_s}
