"""A bench's result: a table for people, a JSON list for what compares runs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from e2e.harness.kube import REPO

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `baseline`: what it is held against, in the same unit; `ratio`: value over baseline; `n`: samples."""

    metric: str
    value: float | None  # None: not reached, not answered
    unit: str
    baseline: float | None = None
    ratio: float | None = None
    n: int | None = None


def against(metric: str, value: float, unit: str, baseline: float, n: int | None = None) -> Row:
    """A row whose ratio is computed; a baseline of 0 has none."""
    return Row(metric, value, unit, baseline, value / baseline if baseline else None, n)


def write(name: str, rows: Sequence[Row]) -> Path:
    """Print the rows and write them to build/bench/NAME.json, which is returned."""
    console = Console(width=None if Console().is_terminal else 150)
    console.print(table_of(name, rows))
    return save(name, rows)


def save(name: str, rows: Sequence[Row]) -> Path:
    """Write the rows to build/bench/NAME.json, which is returned; for a bench that prints its own table."""
    path = REPO / "build/bench" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    return path


def table_of(name: str, rows: Sequence[Row]) -> Table:
    """The rows as people read them."""
    table = Table("METRIC", "VALUE", "UNIT", "BASELINE", "RATIO", "N", title=name, box=None)
    for row in rows:
        table.add_row(row.metric, number(row.value), row.unit, number(row.baseline), number(row.ratio), number(row.n))
    return table


def number(value: float | None) -> str:
    """Four digits that mean something; `-` for none."""
    return "-" if value is None else f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
