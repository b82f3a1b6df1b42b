"""Policies against each other: attainment and GPU-hours of every planner on recorded and spliced traces.

`python -m e2e.bench.control --data DIR [--quick] [--case NAME] [--policy NAME] [--decisions]`
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from e2e.bench.control_cases import QUICK, Case, cases
from e2e.bench.control_policies import WARM_S, Contender, Played, attainment, contenders, oracle, play
from e2e.bench.table import Row, write

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def score(policy: str, case: Case, played: Played, seconds: float) -> Score:
    """What came out after the warm-up."""
    scored = [r for r in played.run.requests if r.arrived >= WARM_S]
    ttft = sorted(r.ttft_s * 1000 for r in scored if r.ttft_s is not None)
    tpot = sorted(r.tpot_s * 1000 for r in scored if r.tpot_s is not None)
    hours, share = played.gpu_seconds / 3600, attainment(case, played.run)
    goodput = share * sum(a.at >= WARM_S for a in case.trace) / hours
    moves = sum(t.at >= WARM_S for t in played.run.moves)
    return Score(policy, share, hours, goodput, summary(ttft), summary(tpot), moves, seconds)


def summary(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean, median and 99th percentile of sorted values; zeros for none."""
    if not values:
        return 0.0, 0.0, 0.0
    return sum(values) / len(values), values[len(values) // 2], values[min(len(values) * 99 // 100, len(values) - 1)]


def scores_of(case: Case, wanted: Sequence[str], decisions: bool) -> list[Score]:
    """Every contender on this trace, and the oracle."""
    out = []
    for name, contender in contenders(case).items():
        if wanted and name not in wanted:
            continue
        out.append(timed(name, case, contender, decisions))
    if not wanted or ORACLE in wanted:
        began = time.process_time()
        played = oracle(case)
        out.append(score(ORACLE, case, played, time.process_time() - began))
    return out


def timed(name: str, case: Case, contender: Contender, decisions: bool) -> Score:
    """One run with its CPU time; its decisions printed where asked for."""
    began = time.process_time()
    played = play(case, contender)
    if decisions:
        print_decisions(played.run)
    return score(name, case, played, time.process_time() - began)


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
        count = len(case.trace)
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
    parser.add_argument("--scores", type=Path, help="also write the whole scores here, as JSON lines")
    given = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 150)
    rows: list[Row] = []
    for case in cases(given.data, QUICK if given.quick else None):
        if given.case and case.name not in given.case:
            continue
        scores = scores_of(case, given.policy, given.decisions)
        console.print(table_of(case, scores))
        rows += rows_of(case, scores)
        if given.scores:
            with given.scores.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps({"case": case.name, **plain(s)}) + "\n" for s in scores)
    write("control", rows)


def plain(one: Score) -> dict[str, object]:
    """A score's fields."""
    return {name: getattr(one, name) for name in Score.__slots__}


if __name__ == "__main__":
    main(sys.argv[1:])
