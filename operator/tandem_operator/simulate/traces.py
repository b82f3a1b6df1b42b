"""Recorded arrivals from a file: Azure's CSV, Mooncake's JSON lines, and a plain form of either. Streams; one pass.

| form | fields |
|---|---|
| Azure (CSV) | `TIMESTAMP` (date and time), `ContextTokens`, `GeneratedTokens` |
| Mooncake (JSON lines) | `timestamp` (ms), `input_length`, `output_length`, `hash_ids` (one for each 512 tokens) |
| plain CSV | `arrival_s`, `prompt_tokens`, `output_tokens`, perhaps `prefix_hashes` (whole numbers, spaces between) |
| plain JSON lines | the same names; `prefix_hashes` is a list |

A hash stands for a block of the prompt and all before it. The first arrival is second 0.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from typing import TYPE_CHECKING, Any

from tandem_operator.simulate.request import Request
from tandem_operator.simulate.workload import WorkloadError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from typing import TextIO

MOST_CHARACTERS = 4 << 20  # of one row; a file without line ends is no trace
MOST_TOKENS = 100_000_000  # a prompt longer than this is a mistake of the file
MOST_SECONDS = 1e10  # three hundred years
BLOCK_TOKENS = 512  # tokens of one hash, as Mooncake's trace has them


@dataclass(frozen=True, slots=True)
class Form:
    """Names of a form's fields, and how its times are read (seconds since any fixed moment)."""

    name: str
    arrived: str
    prompt: str
    output: str
    hashes: str
    seconds: Callable[[Any], float]

    @property
    def needs(self) -> tuple[str, str, str]:
        """Fields that every row has."""
        return self.arrived, self.prompt, self.output


class Row:
    """One row and where it stands, so that whatever is wrong with a field can be said in one sentence."""

    def __init__(self, path: Path, number: int, fields: Mapping[str, Any]) -> None:
        """Row `number` of the file, the first one 1."""
        self._path, self._number, self._fields = path, number, fields

    def fault(self, field: str, what: str) -> WorkloadError:
        """The error that names file, row and field."""
        return WorkloadError(f"{self._path}, row {self._number}, field {field}: {what}")

    def value(self, field: str) -> Any:
        """The field as it stands. Raises WorkloadError where it is missing or empty."""
        found = self._fields.get(field)
        if found is None or found == "":
            raise self.fault(field, "is missing")
        return found

    def tokens(self, field: str) -> int:
        """A count of tokens, at least 1: prompts that a trace counts as empty still have their first token."""
        count = whole_number(self.value(field))
        if count is None:
            raise self.fault(field, f"{shown(self.value(field))} is no whole number")
        if not 0 <= count <= MOST_TOKENS:
            raise self.fault(field, f"{shown(count)} tokens are {'fewer than none' if count < 0 else 'too many'}")
        return max(count, 1)

    def seconds(self, form: Form) -> float:
        """The arrival in seconds. Raises WorkloadError for what is no time, or one before the form's zero."""
        raw = self.value(form.arrived)
        try:
            at = form.seconds(raw)
        except (ValueError, TypeError, OverflowError):
            raise self.fault(form.arrived, f"{shown(raw)} is no time") from None
        if not isfinite(at) or abs(at) > MOST_SECONDS:
            raise self.fault(form.arrived, f"{shown(raw)} is no time")
        if at < 0:
            raise self.fault(form.arrived, f"{shown(raw)} is a negative time")
        return at

    def hashes(self, field: str) -> tuple[int, ...]:
        """The prompt's block hashes; none where the field is left out."""
        raw = self._fields.get(field)
        parts = raw.split() if isinstance(raw, str) else raw or []
        if not isinstance(parts, list):
            raise self.fault(field, f"{shown(raw)} is no list of hashes")
        found = [whole_number(part) for part in parts]
        if None in found:
            raise self.fault(field, f"{shown(parts[found.index(None)])} is no whole number")
        return tuple(number for number in found if number is not None)


def shown(value: object) -> str:
    """A value as an error message quotes it: short, on one line."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


def whole_number(value: object) -> int | None:
    """The value as an int; None for everything that is not one, True and 1.5 included."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if not isinstance(value, str) or not value.strip().removeprefix("-").isdecimal() or len(value) > 20:
        return None
    return int(value)


def plain_number(value: object) -> float:
    """Seconds as they stand. Raises TypeError or ValueError for what is no number."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError(value)
    return float(value)


def date_and_time(value: object) -> float:
    """Seconds since 1970 of `2023-11-16 18:17:03.9799600`, with or without an offset (UTC without)."""
    if not isinstance(value, str):
        raise TypeError(value)
    head, dot, rest = value.strip().partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    # Azure writes seven fractional digits, one more than datetime reads.
    at = datetime.fromisoformat(head + dot + digits[:6].ljust(6, "0") * bool(dot) + rest[len(digits) :])
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


AZURE = Form("Azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens", "prefix_hashes", date_and_time)
MOONCAKE = Form(
    "Mooncake", "timestamp", "input_length", "output_length", "hash_ids", lambda raw: plain_number(raw) / 1000
)
PLAIN = Form("plain", "arrival_s", "prompt_tokens", "output_tokens", "prefix_hashes", plain_number)
FORMS = (AZURE, MOONCAKE, PLAIN)


def read(path: Path, rate: float = 1.0, limit_s: float | None = None) -> Iterator[Request]:
    """The trace's requests in order, the first one at second 0; one row is in memory at a time.

    rate: 2 plays it twice as fast. limit_s: stop after so many seconds of the played trace.
    Raises WorkloadError with file, row and field: a missing field, a negative or unsorted time, what is no number,
    an empty file, bytes that are no text.
    """
    form: Form | None = None
    first = last = None
    for row, names in rows(path):
        form = form or form_of(path, names)
        at = row.seconds(form)
        first = at if first is None else first
        if last is not None and at < last:
            raise row.fault(form.arrived, f"is {last - at:.3f} s before the row above; sort the trace by time")
        last = at
        arrived = (at - first) / rate
        if limit_s is not None and arrived > limit_s:
            return
        yield Request(arrived, row.tokens(form.prompt), row.tokens(form.output), row.hashes(form.hashes))
    if last is None:
        raise WorkloadError(f"{path}: has no request; a trace has a row for each")


def form_of(path: Path, names: set[str]) -> Form:
    """The form whose fields these are. Raises WorkloadError, naming what is missing of the one that is nearest."""
    nearest = max(FORMS, key=lambda form: len(names & set(form.needs)))
    missing = [field for field in nearest.needs if field not in names]
    if len(missing) == len(nearest.needs):
        known = "; ".join(f"{form.name}: {', '.join(form.needs)}" for form in FORMS)
        raise WorkloadError(f"{path}, row 1: has none of the fields of a trace ({known})")
    if missing:
        raise WorkloadError(f"{path}, row 1, field {missing[0]}: is missing; a trace of {nearest.name}'s form has it")
    return nearest


def rows(path: Path) -> Iterator[tuple[Row, set[str]]]:
    """Each row with the names of the fields that the file has; JSON lines where the first character is a brace."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            head = next((line for line in lines(path, file) if line.strip()), "")
            if not head:
                return
            file.seek(0)
            yield from json_rows(path, file) if head.lstrip().startswith("{") else csv_rows(path, file)
        except UnicodeDecodeError:
            raise WorkloadError(f"{path}: is no UTF-8 text; write the trace as CSV or JSON lines") from None


def lines(path: Path, file: TextIO) -> Iterator[str]:
    """The file's lines, none longer than a row may be."""
    while line := file.readline(MOST_CHARACTERS):
        if len(line) == MOST_CHARACTERS:
            raise WorkloadError(
                f"{path}: has a row of more than {MOST_CHARACTERS:,} characters; one row is one request"
            )
        yield line


def csv_rows(path: Path, file: TextIO) -> Iterator[tuple[Row, set[str]]]:
    """Rows below a header; numbered by their line in the file, the header's is 1."""
    reader = csv.DictReader(lines(path, file))
    try:
        names = {name.strip() for name in reader.fieldnames or []}
        form_of(path, names)  # a header without a row below it is judged as well
        for fields in reader:
            yield Row(path, reader.line_num, {(name or "").strip(): value for name, value in fields.items()}), names
    except csv.Error as error:
        raise WorkloadError(f"{path}, row {reader.line_num}: {error}; write plain CSV") from None


def json_rows(path: Path, file: TextIO) -> Iterator[tuple[Row, set[str]]]:
    """One object a line; empty lines are passed over."""
    for number, line in enumerate(lines(path, file), start=1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            raise WorkloadError(f"{path}, row {number}: is no JSON object; write one a line") from None
        if not isinstance(fields, dict):
            raise WorkloadError(f"{path}, row {number}: is no JSON object; write one a line")
        yield Row(path, number, fields), set(fields)
