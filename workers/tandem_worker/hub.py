"""Models of a hub, by repository and revision: `python -m tandem_worker.hub hf://owner/name --revision R` pulls one.

Files lie in the hub library's own cache (HF_HOME), so that one pull serves every worker that mounts it, of any engine.
With HF_HUB_OFFLINE=1 nothing is asked of the hub, and what is not there is an error. No torch in here: a pull is small.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import re
import sys
import time
from pathlib import Path
from typing import Final

LOG = logging.getLogger("tandem_worker.hub")
SOURCE: Final = re.compile(r"hf://([A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*)")
REFUSED: Final = 2  # exit code: another try would end the same
UNREACHABLE: Final = 3  # exit code: another try may help


class HubError(Exception):
    """The model cannot be had; the text says what to change. `exit_code`: whether another try may help."""

    def __init__(self, text: str, exit_code: int = REFUSED) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def repository_of(source: str) -> str | None:
    """`owner/name` of an hf:// source, None for another kind. Raises HubError for one that is spelled wrongly."""
    if not source.startswith("hf://"):
        return None
    if (found := SOURCE.fullmatch(source)) is None:
        raise HubError(f"{source}: write hf://owner/name, and the revision beside it")
    return found[1]


def fetched(repository: str, revision: str) -> Path:
    """The folder of this revision's files, downloaded where they are not there yet. Raises HubError."""
    # Not above: the hub's library takes a second to import, which a model on a disk has no need of.
    folder: Path = importlib.import_module("tandem_worker.hub_download").fetched(repository, revision)
    return folder


def main() -> int:
    """Pull, and say in one line what went wrong."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    parser = argparse.ArgumentParser("tandem_worker.hub", description="Pull a model into the cache (HF_HOME).")
    parser.add_argument("source", help="hf://owner/name")
    parser.add_argument("--revision", required=True, help="commit, tag or branch")
    flags = parser.parse_args()
    began = time.monotonic()
    try:
        folder = fetched(repository_of(flags.source) or flags.source, flags.revision)
    except HubError as error:
        sys.stderr.write(f"{' '.join(str(error).split())}\n")
        return error.exit_code
    LOG.info("%s at %s is in %s after %.1f s", flags.source, flags.revision, folder, time.monotonic() - began)
    return 0


if __name__ == "__main__":
    # By its own name: what the download raises is this module's error, and not that of `__main__`.
    sys.exit(importlib.import_module("tandem_worker.hub").main())
