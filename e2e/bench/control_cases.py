"""The traces of the control bench: recorded ones scaled to some workers' load, and spliced ones."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tandem_operator.plan.facts import Slo
from tandem_operator.simulate import scenarios
from tandem_operator.simulate.scenarios import Arrival
from tandem_operator.simulate.traces import read as azure

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHAT = Slo(ttft_ms=2000, tpot_ms=20, percentile=99)
LONG = Slo(ttft_ms=30_000, tpot_ms=50, percentile=99)  # Mooncake's own TTFT bound (FAST'25, section 8: 30 s)
CODE_COPIES, CONV_COPIES = 4, 3  # times the recorded rate: a load of several workers
SECONDS = 1800.0
WARM_S = 300.0  # from the start, not scored: nobody may be judged by a start that it did not choose


@dataclass(frozen=True, slots=True)
class Quick:
    """What the quick form keeps."""

    seconds: float
    names: frozenset[str]


QUICK = Quick(600.0, frozenset({"code", "conv bursts", "switches"}))


@dataclass(frozen=True, slots=True)
class Case:
    """One workload with its SLO."""

    name: str
    trace: tuple[Arrival, ...]
    slo: Slo
    seconds: float
    router: str = "least-backlog"

    @property
    def scored(self) -> int:
        """Requests that count: those after the warm-up."""
        return sum(a.at >= WARM_S for a in self.trace)

    @property
    def mean_prompt(self) -> float:
        """Tokens."""
        return sum(a.prompt for a in self.trace) / len(self.trace)

    @property
    def mean_output(self) -> float:
        """Tokens."""
        return sum(a.output for a in self.trace) / len(self.trace)


def mooncake(path: Path) -> Iterator[Arrival]:
    """A Mooncake trace: JSON lines, times in ms, hashes of 512-token blocks."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            hashes = tuple(row["hash_ids"])
            yield Arrival(row["timestamp"] / 1000, max(row["input_length"], 1), max(row["output_length"], 1), hashes)


def cases(data: Path, quick: Quick | None = None) -> Iterator[Case]:
    """All workloads, in a fixed order; the quick form shorter and fewer."""
    seconds = quick.seconds if quick else SECONDS
    one_code, one_conv = (
        scenarios.arrivals_of(azure(data / f"AzureLLMInferenceTrace_{name}.csv")) for name in ("code", "conv")
    )
    code, conv = scenarios.thickened(one_code, CODE_COPIES), scenarios.thickened(one_conv, CONV_COPIES)
    bursts = tuple(seconds * share for share in (0.25, 0.5, 0.75))
    made = {
        "code": (scenarios.cut(code, 0, seconds), CHAT),
        "conv": (scenarios.cut(conv, 0, seconds), CHAT),
        "code bursts": (scenarios.with_bursts(scenarios.cut(code, 0, seconds), bursts, seconds / 15, 2), CHAT),
        "conv bursts": (scenarios.with_bursts(scenarios.cut(conv, 0, seconds), bursts, seconds / 15, 2), CHAT),
        "conv days": (scenarios.day_and_night(scenarios.cut(conv, 0, seconds), seconds / 2, 0.2), CHAT),
        "switches": (scenarios.alternating(code, conv, seconds / 4, seconds), CHAT),
    }
    long = (
        ("mooncake conv", "mooncake_conversation_trace.jsonl", 1),
        ("mooncake synthetic", "mooncake_synthetic_trace.jsonl", 1),
    )
    for name, (trace, slo) in made.items():
        if quick is None or name in quick.names:
            yield Case(name, trace, slo, seconds)
    for name, file, copies in long:
        if quick is None or name in quick.names:
            trace = scenarios.thickened(tuple(mooncake(data / file)), copies)
            yield Case(
                name, scenarios.cut(trace, 0, seconds), LONG, min(seconds, scenarios.seconds_of(trace)), "prefix-aware"
            )
