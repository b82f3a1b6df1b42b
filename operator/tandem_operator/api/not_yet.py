"""What the API has and this version does not carry out: refused with a sentence, never ignored.

Each line becomes a CEL rule of the CRD and a check at run time. To open a field, delete its line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tandem_operator.api.spec import Spec


@dataclass(frozen=True, slots=True)
class NotYet:
    """A field that must be unset or empty; with `only`, one of these.

    `path` is as in the manifest, `[]` for each item of a list. `instead` says what to do.
    """

    path: str
    instead: str
    only: tuple[str | int | bool, ...] = ()

    def allows(self, value: object) -> bool:
        """Is this value of the field carried out?"""
        if value is None or (not self.only and value in ([], {})):
            return True
        return value in self.only

    def sentence(self, value: object) -> str:
        """What is said of a value that is not carried out; the same words as the CRD's rule."""
        return f"{value if self._names_value else 'this'} is not carried out yet by this version; {self.instead}"

    @property
    def _names_value(self) -> bool:
        """Strings are quoted in the message; CEL cannot bound what a number's text costs."""
        return any(isinstance(value, str) for value in self.only)

    def as_validation(self, *, sized: bool) -> dict[str, str]:
        """The line as a CEL rule of the object that holds the field; `sized`: the field is a list or a map."""
        field = self.path.rpartition(".")[2]
        words = f"is not carried out yet by this version; {self.instead}"
        found = {
            "rule": self._rule(f"self.{field}", sized=sized),
            "message": f"this {words}",
            "fieldPath": f".{field}",
            "reason": "FieldValueForbidden",
        }
        if self._names_value:
            found["messageExpression"] = f"self.{field} + {json.dumps(f' {words}')}"
        return found

    def _rule(self, name: str, *, sized: bool) -> str:
        if self.only:
            return f"!has({name}) || {name} in {json.dumps(self.only)}"
        return f"!has({name}) || size({name}) == 0" if sized else f"!has({name})"


REMOVE = "remove it"

NOT_YET: tuple[NotYet, ...] = (
    NotYet("spec.mode", "use Disaggregated or Colocated", only=("Disaggregated", "Colocated")),
)


def refusals(spec: Spec) -> list[str]:
    """What the spec asks for that this version does not carry out, one `path: sentence` each; empty if nothing."""
    wire = spec.to_wire()
    return [
        f"{path}: {line.sentence(value)}"
        for line in NOT_YET
        for path, value in _values({"spec": wire}, line.path.split("."), "")
        if not line.allows(value)
    ]


def _values(node: Any, steps: list[str], at: str) -> Iterator[tuple[str, Any]]:
    """Every value at the path, with where exactly it is; nothing where the path ends early."""
    if not steps:
        yield at, node
        return
    name = steps[0].removesuffix("[]")
    if name not in node:
        return
    here = f"{at}.{name}" if at else name
    if steps[0].endswith("[]"):
        for index, item in enumerate(node[name]):
            yield from _values(item, steps[1:], f"{here}[{index}]")
    else:
        yield from _values(node[name], steps[1:], here)
