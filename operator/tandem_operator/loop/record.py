"""The decisions' record: one JSON line a decision pass, in a file that stays bounded."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from tandem_operator.plan.record import to_record

if TYPE_CHECKING:
    from datetime import datetime

    from tandem_operator.loop.refs import Ref
    from tandem_operator.plan.facts import Decision, Observed

log = logging.getLogger(__name__)

MAX_BYTES = 32 * 1024 * 1024


class Recorder:
    """Appends to `path`; at 32 MiB the file becomes `<path>.1` (replacing the one before) and a new one begins."""

    def __init__(self, path: str, max_bytes: int = MAX_BYTES) -> None:
        self._path = Path(path) if path else None
        self._max_bytes = max_bytes

    def write(self, ref: Ref, seen: Observed, now: datetime, decision: Decision) -> None:
        """Record one decision. A disk that is full or gone costs the record, not the decision."""
        if self._path is None:
            return
        line = json.dumps({"resource": str(ref), **to_record(seen, now, decision)}, separators=(",", ":")) + "\n"
        try:
            self._rotate(len(line))
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            log.warning("the decision of %s was not recorded in %s: %s", ref, self._path, error)

    def _rotate(self, coming: int) -> None:
        if self._path is None or not self._path.exists():
            return
        if self._path.stat().st_size + coming > self._max_bytes:
            self._path.replace(self._path.with_name(self._path.name + ".1"))
