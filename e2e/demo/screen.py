"""What the demo shows: steps as they pass, and a live table while a load runs."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.table import Table

console = Console(highlight=False, width=None if Console().is_terminal else 150)
PLAIN_EVERY = 10.0  # seconds between rows where there is no terminal to redraw


@dataclass(frozen=True, slots=True)
class Row:
    """One moment of a load."""

    second: float
    ratio: str
    ttft_ms: float
    tpot_ms: float
    waiting: int
    words: str


def ms(value: float) -> str:
    """Milliseconds for people: `-` for nothing measured, `never` for what did not come."""
    if math.isnan(value):
        return "-"
    return "never" if math.isinf(value) else f"{value:,.0f}"


def with_unit(value: float) -> str:
    """`1,020 ms`, or `never`."""
    return f"{ms(value)} ms" if math.isfinite(value) else ms(value)


class Screen:
    """A live table on a terminal; a row every ten seconds elsewhere."""

    def __init__(self, title: str, ttft_target: int, tpot_target: int, percentile: int) -> None:
        self._title = title
        self._ttft, self._tpot, self._percentile = ttft_target, tpot_target, percentile
        self._rows: list[Row] = []
        self._printed = -math.inf
        self._live = Live(console=console, refresh_per_second=2, transient=False) if console.is_terminal else None

    def __enter__(self) -> Screen:
        """Begin to draw."""
        if self._live:
            self._live.__enter__()
        else:
            targets = f"TTFT {self._ttft:,} ms, TPOT {self._tpot:,} ms, p{self._percentile}"
            console.print(f"[bold]{self._title}[/]  (targets: {targets})")
            console.print(f"  {'s':>4}  {'P:D':>4}  {'TTFT':>8}  {'TPOT':>6}  {'open':>4}  decision")
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the last state on the screen."""
        if self._live:
            self._live.__exit__(None, None, None)

    def show(self, row: Row) -> None:
        """Add a moment; a row with new words is always shown."""
        new = not self._rows or row.words != self._rows[-1].words or row.ratio != self._rows[-1].ratio
        self._rows.append(row)
        if self._live:
            self._live.update(self._table())
        elif new or time.monotonic() - self._printed >= PLAIN_EVERY:
            self._printed = time.monotonic()
            figures = (
                f"{row.second:>4.0f}  {row.ratio:>4}  {ms(row.ttft_ms):>8}  {ms(row.tpot_ms):>6}  {row.waiting:>4}"
            )
            console.print(f"  {figures}  {row.words}", soft_wrap=True)

    def _table(self) -> Table:
        table = Table(title=self._title, title_justify="left", expand=True)
        for name in ("s", "P:D", f"TTFT p{self._percentile} ms", f"TPOT p{self._percentile} ms", "open"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("decision", ratio=1)
        kept = [r for i, r in enumerate(self._rows) if i % 10 == 0 or r.words != self._rows[i - 1].words][-12:]
        for row in [*kept, self._rows[-1]]:
            table.add_row(
                f"{row.second:.0f}",
                row.ratio,
                self._coloured(row.ttft_ms, self._ttft),
                self._coloured(row.tpot_ms, self._tpot),
                str(row.waiting),
                row.words,
            )
        return table

    @staticmethod
    def _coloured(value: float, target: int) -> str:
        if math.isnan(value):
            return "-"
        return f"[{'green' if value <= target else 'red'}]{ms(value)}[/]"


def step(text: str) -> None:
    """Announce a step."""
    console.print(f"\n[bold cyan]▸ {text}[/]")


def true(text: str) -> None:
    """Something was checked and holds."""
    console.print(f"  [green]✓[/] {text}", soft_wrap=True)


def note(text: str) -> None:
    """Something that one may want to know."""
    console.print(f"    {text}", soft_wrap=True)
