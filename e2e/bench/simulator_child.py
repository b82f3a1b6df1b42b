"""One simulation in a process of its own, so that its CPU time, start-up included, can be held against other programs'.

usage: python -m e2e.bench.simulator_child ARRIVALS.csv 'JSON of a Cell'
"""

from __future__ import annotations

import csv
import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tandem_operator.plan.facts import (
    Action,
    Decision,
    Device,
    Limits,
    ModelShape,
    PoolLimits,
    RebalanceMode,
    Role,
    Slo,
    Target,
)
from tandem_operator.simulate.run import Scenario, Simulation
from tandem_operator.simulate.worker import Engine, Request, Truth

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from tandem_operator.plan.facts import Observed
    from tandem_operator.simulate.run import Run

# The planner is not what is measured: a policy that never moves asks nothing of these.
NO_DEVICE = Device("none", 1.0, 1.0, 1.0, 1.0, 0.0)
NO_MODEL = ModelShape(1, 1, 1, 1, 1, 1, 1, 1)
SLO = Slo(ttft_ms=500, tpot_ms=40, percentile=95)
INTERVAL_S = 15  # the operator's default: windows and ticks are part of a run
MAX_BATCH = 512  # splitwise-sim's
CHUNK_TOKENS = 2048  # splitwise-sim's prompt tokens a batch


@dataclass(frozen=True, slots=True)
class Cell:
    """One comparison: workers, costs, and how long the arrivals last."""

    prefill: int
    decode: int
    seconds: float
    truth: dict[str, float]


def main() -> None:
    """Simulate and print what came out as JSON."""
    path, cell = Path(sys.argv[1]), Cell(**json.loads(sys.argv[2]))
    with path.open(newline="", encoding="utf-8") as file:
        run = play(cell, (Request(float(at), int(prompt), int(output)) for at, prompt, output in csv.reader(file)))
    print(json.dumps({"requests": len(run.ledger), "rss_mb": peak_rss_mb(), "digest": digest(run)}))


def play(cell: Cell, arrivals: Iterator[Request]) -> Run:
    """The cell under a policy that never moves."""
    truth = Truth(**cell.truth)  # type: ignore[arg-type]  # kv_tokens is whole
    pools = tuple(
        PoolLimits(role.value, role, NO_DEVICE, 1, count, count, count)
        for role, count in ((Role.PREFILL, cell.prefill), (Role.DECODE, cell.decode))
    )
    limits = Limits(SLO, RebalanceMode.OFF, pools, interval_s=INTERVAL_S, max_batch=MAX_BATCH)
    scenario = Scenario(limits, NO_MODEL, {p.name: truth for p in pools}, engine=Engine(CHUNK_TOKENS), records=False)
    return Simulation(scenario, arrivals, fixed(cell)).play(cell.seconds)


def fixed(cell: Cell) -> Callable[[Observed, datetime], Decision]:
    """Always these workers."""
    counts = {Role.PREFILL.value: cell.prefill, Role.DECODE.value: cell.decode}
    decision = Decision(Action.HOLD, "Fixed", "", Target(counts, cell.prefill, cell.decode))
    return lambda _seen, _now: decision


def peak_rss_mb() -> float:
    """Of this program alone; getrusage would count the parent that it was forked from."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return float("nan")


def digest(run: Run) -> str:
    """Of every request's end, to the last bit."""
    found = hashlib.sha256()
    for column in run.arrays.values():
        found.update(column)
    return found.hexdigest()


if __name__ == "__main__":
    main()
