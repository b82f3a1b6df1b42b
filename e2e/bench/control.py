"""Policies against each other: attainment and GPU-hours of every planner on recorded and spliced traces.

`python -m e2e.bench.control --data DIR [--quick] [--case NAME] [--policy NAME] [--decisions]`
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from e2e.bench.control_cases import QUICK, WARM_S, Case, cases
from e2e.bench.control_policies import Contender, Played, contenders, oracle, play
from e2e.bench.table import Row, write
from tandem_operator.simulate.quantile import percentile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tandem_operator.simulate.run import Run

OURS = "tandem"
ORACLE = "oracle"
SAME = 0.001  # attainments closer than this are the same: a request or two of a thousand


@dataclass(frozen=True, slots=True)
class Score:
    """One policy on one trace. Times in ms; None where nothing was measured."""

    policy: str
    attainment: float
    gpu_hours: float
    goodput: float  # requests that met both targets, by GPU-hour
    ttft: tuple[float, float, float]  # mean, p50, p99
    tpot: tuple[float, float, float]
    moves: int
    seconds: float  # of CPU, for the run


def score(policy: str, played: Played, seconds: float) -> Score:
    """What came out after the warm-up."""
    hours = played.gpu_seconds / 3600
    moves = sum(t.at >= WARM_S for t in played.run.moves)
    ttft, tpot = summary(played.ttft), summary(played.tpot)
    return Score(policy, played.attainment, hours, played.met / hours, ttft, tpot, moves, seconds)


def summary(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean, median and 99th percentile in ms of sorted seconds; zeros for none."""
    if not values:
        return 0.0, 0.0, 0.0
    found = sum(values) / len(values), percentile(values, 50) or 0.0, percentile(values, 99) or 0.0
    return found[0] * 1000, found[1] * 1000, found[2] * 1000


class Store:
    """Scores of one trace in a file of JSON lines, so that a long bench can go on where it was stopped."""

    def __init__(self, path: Path | None, case: str) -> None:
        """Read what is there."""
        self._path, self._case = path, case
        lines = path.read_text(encoding="utf-8").splitlines() if path and path.exists() else []
        rows = [row for line in lines if (row := json.loads(line)).pop("case") == case]
        self._kept = {row["policy"]: Score(**row) for row in rows}

    def get(self, policy: str, make: Callable[[], Played]) -> Score:
        """The kept score, or a new one, kept from now on."""
        if policy not in self._kept:
            began = time.process_time()
            self._kept[policy] = found = score(policy, make(), time.process_time() - began)
            if self._path:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"case": self._case, **asdict(found)}) + "\n")
        return self._kept[policy]


def scores_of(case: Case, wanted: Sequence[str], decisions: bool, store: Store) -> list[Score]:
    """Every contender on this trace, and the oracle."""
    makers: dict[str, Callable[[], Played]] = {
        name: partial(shown, case, contender, decisions) for name, contender in contenders(case).items()
    }
    makers[ORACLE] = partial(oracle, case)
    return [store.get(name, make) for name, make in makers.items() if not wanted or name in wanted]


def shown(case: Case, contender: Contender, decisions: bool) -> Played:
    """One run; its decisions printed where asked for."""
    played = play(case, contender)
    if decisions:
        print_decisions(played.run)
    return played


def print_decisions(run: Run) -> None:
    """Each tick in a line: what was seen, and what was decided."""
    for tick in run.ticks:
        w, target = tick.window, tick.decision.target
        seen = "-" if tick.attainment is None else f"{tick.attainment:.3f}"
        print(
            f"{tick.at:6.0f} {w.arrival_rate or 0:6.2f}/s {w.prompt_tokens or 0:6.0f}/{w.output_tokens or 0:4.0f} "
            f"ttft {w.ttft_ms} tpot {w.tpot_ms} att {seen} serving {w.prefill_workers}:{w.decode_workers} "
            f"target {target.prefill}:{target.decode} {tick.decision.reason}: {tick.decision.message}"
        )


def best_of(scores: Sequence[Score], percentile: int) -> Score | None:
    """The baseline to beat: the cheapest that attains the SLO's percentile, else the one that attains most."""
    rest = [s for s in scores if s.policy not in {OURS, ORACLE}]
    good = [s for s in rest if s.attainment >= percentile / 100]
    if good:
        return min(good, key=lambda s: s.gpu_hours)
    return max(rest, key=lambda s: (round(s.attainment, 3), -s.gpu_hours), default=None)


def rows_of(case: Case, scores: Sequence[Score]) -> list[Row]:
    """The figures, each GPU-hour against the oracle's, and the verdict on ours."""
    by_name = {s.policy: s for s in scores}
    ideal, ours, best = by_name.get(ORACLE), by_name.get(OURS), best_of(scores, case.slo.percentile)
    rows = []
    for s in scores:
        count = case.scored
        rows.append(Row(f"{case.name} {s.policy} attainment", s.attainment, "share", n=count))
        base = ideal.gpu_hours if ideal else None
        rows.append(
            Row(
                f"{case.name} {s.policy} GPU-hours", s.gpu_hours, "h", base, s.gpu_hours / base if base else None, count
            )
        )
        rows.append(Row(f"{case.name} {s.policy} goodput per GPU-hour", s.goodput, "requests", n=count))
    if ours and best:
        rows.append(Row(f"{case.name} ours beats {best.policy}", float(beats(ours, best)), "0 or 1"))
    if ours and ideal:
        near = ours.attainment >= 0.99 * ideal.attainment and ours.gpu_hours <= 1.15 * ideal.gpu_hours
        rows.append(Row(f"{case.name} ours within 15 % of the oracle", float(near), "0 or 1"))
    return rows


def beats(ours: Score, other: Score) -> bool:
    """At least its attainment with fewer GPU-hours, or 5 points more with no more of them."""
    more = ours.attainment - other.attainment
    return (more >= -SAME and ours.gpu_hours < other.gpu_hours) or (more >= 0.05 and ours.gpu_hours <= other.gpu_hours)


def table_of(case: Case, scores: Sequence[Score]) -> Table:
    """One trace's comparison, as people read it."""
    slo = case.slo
    title = (
        f"{case.name}: {len(case.trace):,} requests in {case.seconds:,.0f} s; "
        f"{slo.percentile} % within TTFT {slo.ttft_ms} ms and TPOT {slo.tpot_ms} ms"
    )
    heads = (
        "POLICY",
        "ATTAINED %",
        "GPU-H",
        "GOODPUT/GPU-H",
        "TTFT MEAN/P50/P99 MS",
        "TPOT MEAN/P50/P99 MS",
        "MOVES",
        "CPU S",
    )
    table = Table(*heads, title=title, box=None)
    for s in sorted(scores, key=lambda s: -s.attainment):
        ttft, tpot = "/".join(f"{v:.0f}" for v in s.ttft), "/".join(f"{v:.1f}" for v in s.tpot)
        cells = f"{s.attainment:.2%}".rstrip("%"), f"{s.gpu_hours:.2f}", f"{s.goodput:.0f}", ttft, tpot, str(s.moves)
        table.add_row(s.policy, *cells, f"{s.seconds:.1f}")
    return table


def main(arguments: Sequence[str]) -> None:
    """Run, print, and write build/bench/control.json."""
    parser = argparse.ArgumentParser(prog="e2e.bench.control")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--quick", action="store_true", help="fewer and shorter traces")
    parser.add_argument("--case", action="append", default=[], help="only these traces")
    parser.add_argument("--policy", action="append", default=[], help="only these policies")
    parser.add_argument("--decisions", action="store_true", help="print every decision")
    parser.add_argument("--keep", type=Path, help="add the scores to this file, and take from it those that it has")
    given = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 150)
    rows: list[Row] = []
    for case in cases(given.data, QUICK if given.quick else None):
        if given.case and case.name not in given.case:
            continue
        store = Store(given.keep, case.name)
        scores = scores_of(case, given.policy, given.decisions, store)
        console.print(table_of(case, scores))
        rows += rows_of(case, scores)
    write("control", rows)


if __name__ == "__main__":
    main(sys.argv[1:])
