"""Arrivals from a few words: Poisson phases. Open loop: nobody waits for an answer. Recorded ones: traces.py."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tandem_operator.simulate.request import Request

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WORDS = {"isl", "osl", "rps", "for", "cv"}


class WorkloadError(ValueError):
    """The words or the file are no workload; the message says where and what to write."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Poisson arrivals at `rps` requests/s for `seconds`; lengths in tokens, `cv` their coefficient of variation."""

    isl: int
    osl: int
    rps: float
    seconds: float = 300.0
    cv: float = 0.0


def parse_phase(words: str) -> Phase:
    """`isl=512 osl=8 rps=2 for=300 cv=0.3`; `for` (seconds) and `cv` may be left out."""
    values: dict[str, float] = {}
    for word in words.split():
        name, _, text = word.partition("=")
        if name not in WORDS:
            raise WorkloadError(f"{word!r}: write isl=, osl=, rps=, for= or cv=")
        try:
            values[name] = float(text)
        except ValueError:
            raise WorkloadError(f"{word!r}: {text!r} is no number") from None
    if missing := sorted({"isl", "osl", "rps"} - set(values)):
        raise WorkloadError(f"{words!r}: {missing[0]}= is missing")
    seconds, cv = values.get("for", 300.0), values.get("cv", 0.0)
    if min(values["isl"], values["osl"]) < 1 or values["rps"] < 0 or seconds <= 0 or not 0 <= cv <= 2:
        raise WorkloadError(f"{words!r}: lengths are at least 1, rps at least 0, for above 0, cv from 0 to 2")
    return Phase(int(values["isl"]), int(values["osl"]), values["rps"], seconds, cv)


def poisson(phases: Sequence[Phase], seed: int) -> Iterator[Request]:
    """The phases one after another; the same seed gives the same requests."""
    rng = random.Random(seed)  # a simulation, no secret
    start = 0.0
    for phase in phases:
        at = start
        while phase.rps > 0:
            at += rng.expovariate(phase.rps)
            if at >= start + phase.seconds:
                break
            yield Request(at, length(rng, phase.isl, phase.cv), length(rng, phase.osl, phase.cv))
        start += phase.seconds


def length(rng: random.Random, mean: int, cv: float) -> int:
    """A length with this mean: fixed, or gamma distributed."""
    if cv == 0:
        return mean
    shape = 1 / cv**2
    return max(1, round(rng.gammavariate(shape, mean / shape)))
