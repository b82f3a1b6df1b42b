"""A fixed number of prefill and decode workers: what stands where nothing plans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tandem_operator.plan.policies.base import go, start

if TYPE_CHECKING:
    from datetime import datetime

    from tandem_operator.plan.facts import Decision, Observed


@dataclass(frozen=True, slots=True)
class Static:
    """`prefill` : `decode` workers from the first tick on (the first target is made of the pools' initial replicas)."""

    prefill: int
    decode: int

    def __call__(self, seen: Observed, now: datetime) -> Decision:  # noqa: ARG002
        """Go there once and stay."""
        return start(seen) or go(seen, self.prefill, self.decode, f"static {self.prefill}:{self.decode}")
