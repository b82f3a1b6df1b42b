"""A bench's figure held against a published one: expected, got, how far it may be off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from e2e.bench.table import Row, against, number

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Check:
    """One figure. `tolerance` in the figure's unit; expected None: for information."""

    metric: str
    got: float | None
    unit: str
    expected: float | None = None
    tolerance: float = 0.0
    n: int | None = None

    @property
    def passed(self) -> bool:
        """Within its tolerance; what has nothing to be held against passes."""
        if self.expected is None:
            return True
        return self.got is not None and abs(self.got - self.expected) <= self.tolerance

    def row(self) -> Row:
        """For the JSON; the published figure is the baseline."""
        if self.got is None or self.expected is None:
            return Row(self.metric, self.got, self.unit, self.expected, None, self.n)
        return against(self.metric, self.got, self.unit, self.expected, self.n)


def near(metric: str, got: float | None, unit: str, expected: float, share: float, n: int | None = None) -> Check:
    """A figure that may be off by a share of the expected one."""
    return Check(metric, got, unit, expected, share * abs(expected), n)


def show(title: str, checks: Sequence[Check]) -> None:
    """Print them as people read them."""
    table = Table("METRIC", "EXPECTED", "GOT", "UNIT", "± AT MOST", "", title=title, box=None, title_justify="left")
    for check in checks:
        verdict = "-" if check.expected is None else "pass" if check.passed else "FAIL"
        tolerance = number(check.tolerance if check.expected is not None else None)
        table.add_row(check.metric, number(check.expected), number(check.got), check.unit, tolerance, verdict)
    Console(width=None if Console().is_terminal else 150).print(table)
