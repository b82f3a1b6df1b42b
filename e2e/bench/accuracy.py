"""Accuracy: measured TTFT and TPOT beside what the performance model says; `make bench-accuracy SILICON=FILE`."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from e2e.bench.predicted import answer
from e2e.bench.silicon import BadSiliconError, Measured, read_rows
from e2e.bench.table import Row, write
from tandem_operator.plan.performance.closed_loop import Latency
from tandem_operator.plan.performance.correction import Correction, Point, correct

# The (model, GPU) pairs on which the efficiency constants were chosen; every other pair is held out.
TRAINING: Final = (
    ("qwen3-32b", "h100_sxm"),
    ("deepseek-v3", "b200_sxm"),
    ("minimax-m2", "h200_sxm"),
    ("llama-3.1-70b", "b200_sxm"),
    ("gpt-oss-120b", "h100_sxm"),
)
OBSERVED: Final = 5  # rows that calibration sees of an engine on a GPU
WORST: Final = 12  # slices that are printed of each kind
# AIConfigurator 0.12.0 on a sample of 192 H100 and H200 rows, from operator tables measured on the GPUs.
BASELINE: Final = {"TPOT": 0.14, "TTFT": 0.55}


@dataclass(frozen=True, slots=True)
class Pair:
    """A row and what was said of it; None: unanswered."""

    row: Measured
    said: Latency | None


def main(arguments: Sequence[str]) -> int:
    """Print and write the table for the file that the one argument names."""
    if len(arguments) != 1:
        print("usage: python -m e2e.bench.accuracy FILE")
        return 2
    try:
        rows = read_rows(Path(arguments[0]))
    except (BadSiliconError, OSError) as error:
        print(error)
        return 1
    pairs = [Pair(row, said(row)) for row in rows]
    write("accuracy", [*overall(pairs), *calibrated(pairs), *slices(pairs)])
    return 0


def said(row: Measured) -> Latency | None:
    """The model's answer; a row that it cannot read is said so, and counts as unanswered."""
    try:
        return answer(row)
    except BadSiliconError as error:
        print(error)
        return None


def error_of(pair: Pair, kind: str) -> float:
    """Absolute relative error of TTFT or TPOT; 1 for an unanswered row."""
    if pair.said is None:
        return 1.0
    if kind == "TTFT":
        return abs(pair.said.ttft_s * 1000 / pair.row.ttft_ms - 1)
    return abs(pair.said.tpot_s * 1000 / pair.row.tpot_ms - 1)


def quantile(values: Iterable[float], share: float) -> float:
    """The value that `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def figures(name: str, pairs: Sequence[Pair], *, baseline: bool = False) -> list[Row]:
    """Median and p90 of both errors, in per cent."""
    found = []
    for kind in ("TPOT", "TTFT"):
        errors = [error_of(pair, kind) for pair in pairs]
        beside = BASELINE[kind] * 100 if baseline else None
        value = median(errors) * 100
        found.append(Row(f"{kind} median, {name}", value, "%", beside, value / beside if beside else None, len(pairs)))
        found.append(Row(f"{kind} p90, {name}", quantile(errors, 0.9) * 100, "%", n=len(pairs)))
    return found


def overall(pairs: Sequence[Pair]) -> list[Row]:
    """All rows, and those of pairs that no constant was chosen on."""
    held = [pair for pair in pairs if pair.row.pair not in TRAINING]
    seen = [pair for pair in pairs if pair.row.pair in TRAINING]
    found = figures("all rows", pairs, baseline=True)
    for name, some in (("held-out pairs", held), ("training pairs", seen)):
        if some:
            found += figures(name, some)
    unanswered = sum(pair.said is None for pair in pairs)
    return [*found, Row("unanswered rows", unanswered, "rows", n=len(pairs))]


def slices(pairs: Sequence[Pair]) -> list[Row]:
    """By engine, GPU, model and mode, worst TPOT first."""
    kinds: tuple[tuple[str, Callable[[Measured], str]], ...] = (
        ("engine", lambda row: row.text("backend")),
        ("GPU", lambda row: row.text("system")),
        ("model", lambda row: row.pair[0]),
        ("mode", lambda row: row.text("mode")),
        ("slice", lambda row: " ".join((row.text("backend"), *row.pair, row.text("mode")))),
    )
    found: list[Row] = []
    for kind, key in kinds:
        groups = grouped(pairs, key)
        worst = sorted(groups.items(), key=lambda group: -median(error_of(p, "TPOT") for p in group[1]))
        for name, group in worst[:WORST]:
            found += figures(f"{kind} {name}", group)
    return found


def grouped(pairs: Sequence[Pair], key: Callable[[Measured], str]) -> dict[str, list[Pair]]:
    """Pairs by what `key` says of their rows."""
    groups: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        groups[key(pair.row)].append(pair)
    return groups


def calibrated(pairs: Sequence[Pair]) -> list[Row]:
    """After five rows, which are not reported: three readings of what those rows may have in common with the rest.

    With other models' rows a (model, GPU) pair is kept out as a whole: that is the harder question. A deployment (the
    same engine's version, model, formats and ranks) is what a pool is, and what the operator calibrates.
    """
    found = figures(f"after {OBSERVED} rows of the same engine and GPU, other models", by_other_models(pairs))
    for name, key in (("engine, GPU and model", engine_gpu_and_model), ("deployment", deployment)):
        found += figures(f"after {OBSERVED} rows of the same {name}", by_own_rows(pairs, key))
    return found


def by_own_rows(pairs: Sequence[Pair], key: Callable[[Measured], str]) -> list[Pair]:
    """Each group corrected by five of its rows, which are left out."""
    found = []
    for group in grouped(pairs, key).values():
        seen = spread([pair for pair in group if pair.said is not None])
        found += corrected(seen, [pair for pair in group if pair not in seen])
    return found


def by_other_models(pairs: Sequence[Pair]) -> list[Pair]:
    """Each model corrected by five rows of others on the same engine and GPU; as it is where there are none."""
    found = []
    for group in grouped(pairs, engine_and_gpu).values():
        for name, mine in grouped(group, lambda row: row.pair[0]).items():
            others = [pair for pair in group if pair.said is not None and pair.row.pair[0] != name]
            found += corrected(spread(others), mine)
    return found


def engine_and_gpu(row: Measured) -> str:
    """The engine on the GPU; roles of their own are a way of serving of their own."""
    return " ".join((row.text("backend"), row.text("system"), row.text("mode")))


def engine_gpu_and_model(row: Measured) -> str:
    """The same, for one model."""
    return f"{engine_and_gpu(row)} {row.pair[0]}"


def deployment(row: Measured) -> str:
    """One set-up under different loads."""
    names = [name for name in row.fields if name.endswith(("_size", "_mode", "backend_version"))]
    fixed = (row.text(name) for name in sorted(names) if not name.endswith("batch_size"))
    return " ".join((engine_gpu_and_model(row), *fixed))


def spread(pairs: Sequence[Pair]) -> list[Pair]:
    """Five of them, evenly spaced in the file's order."""
    step = max(len(pairs) / OBSERVED, 1.0)
    return [pairs[int(n * step)] for n in range(min(OBSERVED, len(pairs)))]


def corrected(seen: Sequence[Pair], pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs with the correction that `seen` supports; as they are where nothing was seen."""
    if not seen:
        return list(pairs)
    first, steps = correction(seen, "TTFT"), correction(seen, "TPOT")
    return [Pair(pair.row, apply(first, steps, pair)) for pair in pairs]


def features(row: Measured) -> tuple[float, ...]:
    """What a correction may depend on: requests in flight, prompt and output tokens."""
    return float(row.users), float(row.whole("isl")), float(row.whole("osl"))


def correction(seen: Sequence[Pair], kind: str) -> Correction:
    """Of one kind, from pairs that were answered."""
    points = []
    for pair in seen:
        if pair.said is not None:
            measured, modelled = (
                (pair.row.ttft_ms, pair.said.ttft_s * 1000)
                if kind == "TTFT"
                else (pair.row.tpot_ms, pair.said.tpot_s * 1000)
            )
            points.append(Point(features(pair.row), measured, modelled))
    return correct(points)


def apply(first: Correction, steps: Correction, pair: Pair) -> Latency | None:
    """A corrected answer."""
    if pair.said is None:
        return None
    where = features(pair.row)
    return Latency(first.apply(where, pair.said.ttft_s), steps.apply(where, pair.said.tpot_s))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
