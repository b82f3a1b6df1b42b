"""A generated page: written by its command, or checked to be current."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from e2e.harness.kube import REPO

MAX_CELL = 220


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown; what a cell must not hold is spelled otherwise, and long cells are cut."""
    lines = [head, ["---"] * len(head), *([cell(text) for text in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(text: str) -> str:
    """One cell's text."""
    line = " ".join(text.split()).replace("|", "\\|")
    return line if len(line) <= MAX_CELL else line[: MAX_CELL - 1] + "…"


def main(path: str, command: str, page: Callable[[], str], arguments: Sequence[str] | None = None) -> int:
    """Write the page, or say with status 1 that it is not current."""
    parser = argparse.ArgumentParser(prog=command)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where the page is not current")
    options = parser.parse_args(arguments)
    content = page()
    file = REPO / path
    if not options.check:
        file.write_text(content, encoding="utf-8")
        return 0
    current = is_current(file, content)
    if not current:
        sys.stderr.write(f"not current: {path}; run `{command}`\n")
    return 0 if current else 1


def is_current(file: Path, content: str) -> bool:
    """Is the page there as it would be written now?"""
    return file.is_file() and file.read_text(encoding="utf-8") == content
