"""python -m e2e.demo [--keep | --down]."""

from __future__ import annotations

import argparse
import sys

from e2e.demo import story
from e2e.demo.screen import console
from e2e.harness import cluster as clusters


def main() -> int:
    """0 when all of it was true."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave it up, and print what to try")
    parser.add_argument("--down", action="store_true", help="end what --keep left up")
    chosen = parser.parse_args()
    if chosen.down:
        clusters.found(story.DIRECTORY).down()
        return 0
    try:
        story.tell(keep=chosen.keep)
    except Exception as error:  # noqa: BLE001 - the end of the story: say it, and fail
        console.print(f"\n[bold red]✗ {type(error).__name__}: {error}[/]", soft_wrap=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
