"""docs/reference/performance.md: a section for each bench: its table, machine, day and command."""

from __future__ import annotations

import datetime
import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from e2e.bench.table import number
from e2e.harness.kube import REPO

if TYPE_CHECKING:
    from collections.abc import Sequence

    from e2e.bench.table import Row

PAGE: Final = REPO / "docs/reference/performance.md"


def put(section: str, command: str, rows: Sequence[Row], page: Path = PAGE) -> None:
    """A bench's rows as its section. Raises ValueError: the page has none."""
    put_text(section, f"{stamp(command)}\n\n{markdown(rows)}", page)


def put_text(section: str, made: str, page: Path = PAGE) -> None:
    """Replace what stands between `<!-- made: SECTION -->` and `<!-- end -->`. Raises ValueError: no such place."""
    text = page.read_text(encoding="utf-8")
    place = re.compile(rf"(<!-- made: {re.escape(section)} -->\n).*?(<!-- end -->)", re.DOTALL)
    if not place.search(text):
        raise ValueError(f"{page} has no section {section}")
    page.write_text(place.sub(lambda found: f"{found[1]}{made}{found[2]}", text), encoding="utf-8")


def stamp(command: str) -> str:
    """Command, day and machine."""
    day = datetime.datetime.now(tz=datetime.UTC).date()
    return f"`{command}`, {day}, {machine()}."


def machine() -> str:
    """What it ran on, in words."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    names = re.findall(r"^model name\s*: (.*)$", info, re.MULTILINE) or [platform.machine()]
    memory = int(re.findall(r"^MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text(encoding="utf-8"), re.MULTILINE)[0])
    return f"{len(names)} cores of {names[0].strip()}, {memory / 2**20:.0f} GiB, Linux {platform.release()}"


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    lines = ["| figure | value | unit | beside | ratio |", "| --- | ---: | --- | ---: | ---: |"]
    for row in rows:
        cells = (row.metric, number(row.value), row.unit, number(row.baseline), number(row.ratio))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
