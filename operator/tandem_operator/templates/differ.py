"""Does a live object still have all that was asked of it? Defaults that the API server added are no difference."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Any

SUFFIXES = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{unit: Decimal(1000) ** power for power, unit in enumerate("kMGTPE", start=1)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", start=1)},
}


# The API server does not keep a field's zero value, except where unset means something else: these are among a pod's.
MEANT = frozenset(
    {"allowPrivilegeEscalation", "automountServiceAccountToken", "runAsGroup", "runAsNonRoot", "runAsUser"}
)


def has_all(live: Any, wanted: Any) -> bool:
    """Is every field of `wanted` in `live`? Lists must have the same length, their items likewise."""
    return lacking(live, wanted) is None


def lacking(live: Any, wanted: Any, path: str = "") -> str | None:
    """The path of the first thing in which `live` is not what `wanted` asks for; None: it has all."""
    if isinstance(wanted, dict):
        return lacking_field(live, wanted, path) if isinstance(live, dict) else path
    if isinstance(wanted, list):
        if not isinstance(live, list) or len(live) != len(wanted):
            return path
        found = (lacking(*pair, f"{path}[{i}]") for i, pair in enumerate(zip(live, wanted, strict=True)))
        return next((words for words in found if words is not None), None)
    return None if bool(live == wanted) or is_same_amount(live, wanted) else path


def lacking_field(live: dict[str, Any], wanted: dict[str, Any], path: str) -> str | None:
    """The same of an object's fields."""
    for key, value in wanted.items():
        below = f"{path}.{key}".removeprefix(".")
        if key not in live:
            if not is_unset(key, value):
                return below
        elif (found := lacking(live[key], value, below)) is not None:
            return found
    return None


def is_unset(key: str, value: Any) -> bool:
    """May the API server have left this field out, since its value is that of an unset one?"""
    return key not in MEANT and (value in ("", [], {}) or (value == 0 and isinstance(value, int)))


def is_same_amount(live: Any, wanted: Any) -> bool:
    """`0.5` and `500m` are one quantity; the API server keeps the second spelling."""
    one, other = amount(live), amount(wanted)
    return one is not None and one == other


def amount(value: Any) -> Decimal | None:
    """A quantity as a number, None for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    found = re.fullmatch(r"([+-]?[0-9.]{1,32}(?:[eE][+-]?[0-9]{1,2})?)([A-Za-z]{0,2})", str(value))
    if found is None or found[2] not in SUFFIXES:
        return None
    try:
        return Decimal(found[1]) * SUFFIXES[found[2]]
    except InvalidOperation:
        return None
