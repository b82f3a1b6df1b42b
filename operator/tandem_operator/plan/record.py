"""Decisions on record: facts, time and decision as one JSON line, and replay that must give the very same decisions."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from tandem_operator.plan import facts
from tandem_operator.plan.decide import decide
from tandem_operator.plan.facts import Decision, Observed
from tandem_operator.plan.performance import config

if TYPE_CHECKING:
    from collections.abc import Iterable

VERSION = 1
MOST_LINE_BYTES = 4 << 20  # one observation is some hundred kB at most
# Annotations are strings here; a record's types are named from these alone.
NAMES: dict[str, Any] = {**vars(facts), **vars(config), "datetime": datetime, "Mapping": Mapping}


class RecordError(ValueError):
    """A line that is no record of this version; the message says which field is wrong."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A recorded decision that the policy would not make again."""

    line: int
    recorded: Decision
    replayed: Decision


def to_record(observed: Observed, now: datetime, decision: Decision) -> dict[str, Any]:
    """A JSON-safe dict, lossless: `from_record` gives equal facts, time and decision."""
    return {"version": VERSION, "now": plain(now), "observed": plain(observed), "decision": plain(decision)}


def from_record(record: Mapping[str, Any]) -> tuple[Observed, datetime, Decision]:
    """The facts, the time and the decision of a record.

    Raises RecordError where the record is of another version or does not fit the facts' types.
    """
    if record.get("version") != VERSION:
        raise RecordError(f"version is {record.get('version')!r}, this program reads {VERSION}")
    try:
        now = typed(record["now"], datetime, "now")
        return typed(record["observed"], Observed, "observed"), now, typed(record["decision"], Decision, "decision")
    except KeyError as error:
        raise RecordError(f"{error.args[0]} is missing") from error


def replay(lines: Iterable[str]) -> list[Mismatch]:
    """Decide every recorded observation again; the decisions that differ. Blank lines are skipped."""
    mismatches = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if len(line) > MOST_LINE_BYTES:
            raise RecordError(f"line {number} is longer than {MOST_LINE_BYTES} bytes")
        try:
            observed, now, recorded = from_record(json.loads(line))
        except (RecordError, json.JSONDecodeError) as error:
            raise RecordError(f"line {number}: {error}") from error
        if (replayed := decide(observed, now)) != recorded:
            mismatches.append(Mismatch(number, recorded, replayed))
    return mismatches


def plain(value: Any) -> Any:
    """Facts as JSON values: dataclasses and mappings as objects, tuples as arrays, times as ISO 8601."""
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, StrEnum):
        return str(value)
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [plain(v) for v in value]
    return value


def typed(value: Any, kind: Any, path: str) -> Any:
    """The inverse of `plain` for one annotated type."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in {types.UnionType, typing.Union}:
        return None if value is None else typed(value, next(i for i in inner if i is not types.NoneType), path)
    if origin is tuple:
        return tuple(typed(v, inner[0], f"{path}[{i}]") for i, v in enumerate(expect(value, list, path)))
    if origin is Mapping:
        return {k: typed(v, inner[1], f"{path}.{k}") for k, v in expect(value, dict, path).items()}
    if is_dataclass(kind):
        return typed_fields(expect(value, dict, path), kind, path)
    return scalar(value, kind, path)


def scalar(value: Any, kind: Any, path: str) -> Any:
    """A time, a word of an enumeration, a number or a text."""
    if kind is not datetime and not issubclass(kind, StrEnum):
        return expect(value, (int, float) if kind is float else kind, path)
    read = datetime.fromisoformat if kind is datetime else kind
    try:
        return read(expect(value, str, path))
    except ValueError as error:
        raise RecordError(f"{path}: {error}") from error


def typed_fields(value: dict[str, Any], kind: Any, path: str) -> Any:
    """A dataclass from an object; a field that the record lacks takes its default (records of older programs)."""
    unknown = sorted(set(value) - {f.name for f in fields(kind)})
    if unknown:
        raise RecordError(f"{path}: unknown field {unknown[0]}")
    kinds = typing.get_type_hints(kind, globalns=NAMES)
    missing = [
        f.name for f in fields(kind) if f.name not in value and f.default is MISSING and f.default_factory is MISSING
    ]
    if missing:
        raise RecordError(f"{path}: field {missing[0]} is missing")
    return kind(**{name: typed(v, kinds[name], f"{path}.{name}") for name, v in value.items()})


def expect(value: Any, kind: Any, path: str) -> Any:
    """The value if it is of this JSON type; RecordError says what was found instead."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise RecordError(f"{path}: {type(value).__name__} is not what belongs here")
    return value
