"""What the pages show of `tandem plan` is what it prints; a line of `…` stands for any that are left out."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tandem_operator.cli.main import app

ROOT = Path(__file__).parents[3]
SAMPLES = ROOT / "manifests/samples"
PAGES = ("README.md", "docs/reference/planner/advisor.md")
LEFT_OUT = "…"
FENCED = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def transcripts():
    """(page, command, lines) of every block that shows `tandem plan` on a sample."""
    for page in PAGES:
        for block in FENCED.findall((ROOT / page).read_text()):
            first, *lines = block.splitlines() or [""]
            if first.startswith("$ tandem plan "):
                yield pytest.param(first.removeprefix("$ tandem "), lines, id=f"{page}: {first}")


def shown(lines):
    """A pattern of the lines."""
    parts = ["(?:.*\n)*?" if line == LEFT_OUT else re.escape(line.rstrip()) + "\n" for line in lines]
    return re.compile("".join(parts))


@pytest.mark.parametrize(("command", "lines"), transcripts())
def test_a_transcript_is_what_the_command_prints(command, lines, monkeypatch):
    monkeypatch.chdir(SAMPLES)
    done = CliRunner().invoke(app, shlex.split(command), env={"COLUMNS": "100"})
    printed = "".join(f"{line.rstrip()}\n" for line in done.output.splitlines())
    assert shown(lines).match(printed), printed


def test_the_page_shows_the_sample():
    page = (ROOT / "docs/reference/planner/advisor.md").read_text()
    sample = (SAMPLES / "chat.yaml").read_text().partition("\n")[2].partition("\n")[2]
    assert f"```yaml\n{sample}```" in page
