"""What a pass is about, and how it can end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BEGUN: Final = "Begun"  # the intent is written, the children are not


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """One resource's place in the cluster."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Done:
    """Everything is as the plan wants it, as far as writing goes."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The world must move first; look again in `retry_s` at the latest, sooner when something changes."""

    reason: str
    message: str
    retry_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Stalled:
    """Only an edit of the resource, or of what it collides with, helps."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The API server refused or did not answer; tried again with a growing, bounded delay."""

    reason: str
    message: str


Outcome = Done | Waiting | Stalled | Failed
