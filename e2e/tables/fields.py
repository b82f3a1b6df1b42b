"""The field table: each field of the CRD is set, changed and unset, and what follows in the children is written down.

`python -m e2e.tables.fields` writes docs/reference/fields.md; `--check` exits 1 where it is not current.
"""

from __future__ import annotations

import asyncio
import re
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from e2e.tables.field_values import ALLOWED, AS_UNSET, BESIDE, WITH, values_of
from e2e.tables.memory import Case, Object, copied
from e2e.tables.page import cell, main, table
from e2e.tables.paths import drop, flat, leaves, put, removable
from tandem_operator.api.crd import resource_schema
from tandem_operator.edges.kinds import KINDS, RESOURCE
from tandem_operator.loop.judgements import LIVE
from tandem_operator.loop.main import subjects
from tandem_operator.loop.observe import observe, parse
from tandem_operator.loop.refs import Outcome, Stalled
from tandem_operator.loop.settings import Settings

Effects = dict[str, Any]
SPEC = resource_schema()["properties"]["spec"]
FIELDS = dict(leaves(SPEC, "spec"))
# What changes with every write or by chance, and says nothing of the spec.
NOISE = re.compile(
    r"resourceVersion|uid|generation|Generation|creationTimestamp|Time$|\.at$|tandem\.dev/applied|managedFields"
    r"|stringData|observedGeneration|decision\.(id|changes)|^pods |^events "
)
# Counts that were chosen are the status's (status.decision.target), so these bound them and do not take them back.
CHOSEN = frozenset(
    {
        *(f"spec.pools[].replicas.{name}" for name in ("min", "max", "initial")),
        *(f"spec.rebalance.roles.{name}" for name in ("minPrefill", "minDecode")),
        "spec.pools[].role",
        "spec.mode",  # Auto stays in the mode that it finds
    }
)
# Fields whose value acts on nothing that a pass shows, and where it does act.
ELSEWHERE: dict[str, str] = {
    f"spec.rebalance.behavior.{way}.policies[].periodSeconds": "planner: what moved within it counts against value"
    for way in ("scaleUp", "scaleDown")
} | {"spec.priority": "fleet: who gives GPUs and who gets them, where the operator's settings name a budget"}
PAGE, COMMAND = "docs/reference/fields.md", "python -m e2e.tables.fields"
NOW = datetime(2026, 1, 1, 0, 10, tzinfo=UTC)
SHOWN = 3  # of the places that a value changes, on the page


def base() -> Object:
    """A resource that sets no more than it must."""
    pools = (("prefill", "Prefill", "h100-sxm"), ("decode", "Decode", "h200-sxm"))
    return {
        "apiVersion": KINDS[RESOURCE].api_version,
        "kind": RESOURCE,
        "metadata": {"name": "chat", "namespace": "serving"},
        "spec": {
            "model": {"source": "file:///models/m", "servedName": "m"},
            "pools": [
                {"name": n, "role": r, "hardware": {"accelerator": a}, "replicas": {"min": 1, "max": 4}}
                for n, r, a in pools
            ],
            "slo": {"ttftMilliseconds": 500, "tpotMilliseconds": 40},
        },
    }


def start_of(path: str) -> Object:
    """The base, with what the field needs beside it."""
    body = base()
    if path in BESIDE:
        BESIDE[path](body)
    return body


@dataclass(frozen=True, slots=True)
class Step:
    """One value of a field: what it did, or the words in which it was refused."""

    value: Any
    changed: tuple[str, ...] = ()
    refused: str = ""
    converged: bool = True  # all was as of a resource that began so


@dataclass(frozen=True, slots=True)
class Row:
    """A field, what each value did, and how it was without the field again."""

    path: str
    steps: tuple[Step, ...]
    unset: str  # 'back' (with what held it, where it cannot be without), 'required', 'stays', or words of a refusal

    def taken(self) -> list[Any]:
        """Values that were not refused."""
        return [step.value for step in self.steps if not step.refused]

    def silent(self) -> list[Any]:
        """Values that were taken and changed nothing that is known of: ignored, that is."""
        return [
            step.value
            for step in self.steps
            if not (step.changed or step.refused or (self.path, step.value) in AS_UNSET or self.path in ELSEWHERE)
        ]


def lasting(status: Object) -> Object:
    """The status without the sentences that stay while their reason does, and so depend on what was before."""
    kept = [
        {k: v for k, v in c.items() if k != "message" or c["type"] not in LIVE} for c in status.get("conditions") or []
    ]
    return {**status, "conditions": {c["type"]: c for c in kept}}


def effects(case: Case, outcome: Outcome) -> Effects:
    """All that follows from the spec: children, status, what the planner and the observer are told."""
    found: Effects = {}
    for (plural, _, name), item in case.kube.items.items():
        shown = {"status": lasting(item.get("status") or {})} if plural == case.plural else item
        found |= {f"{plural} {name} {at}": value for at, value in flat(shown)}
    if not isinstance(outcome, Stalled):
        seen = observe(case.world, case.ref, case.body(), parse(case.body()), NOW)
        found |= {f"planner {at}": value for at, value in flat(asdict(seen.facts.limits))}
        found |= {f"observer {at}": value for at, value in flat([asdict(s) for s in subjects(case.world)])}
    return {at: value for at, value in found.items() if not NOISE.search(at)}


async def settled(case: Case) -> tuple[Effects, str]:
    """What is there once nothing moves any more and the first decision was confirmed; the words of a refusal."""
    await case.converge()
    case.touch()
    outcome = await case.converge()
    return effects(case, outcome), outcome.message if isinstance(outcome, Stalled) else ""


def changes(before: Effects, after: Effects) -> tuple[str, ...]:
    """Where two states differ."""
    return tuple(sorted(at for at in before.keys() | after.keys() if before.get(at) != after.get(at)))


async def try_field(path: str) -> Row:
    """Set, change, unset; each time beside a resource that was always so."""
    body = start_of(path)
    case = case_of(path, body)
    first, words = await settled(case)
    if words:
        raise ValueError(f"{path}: the table's own beginning is refused: {words}")
    steps, before, start = [], first, value_at(body, path)
    for value in values_of(path, FIELDS[path], start):
        step, before = await try_value(case, path, with_value(body, path, value), before, value)
        if value != start or step.changed:  # back to the start says nothing where all else was refused
            steps.append(step)
    return Row(path, tuple(steps), await unset(case, path, body, first))


async def unset(case: Case, path: str, body: Object, first: Effects) -> str:
    """Leave the field out again, or what holds it where it cannot be without; how that ends."""
    gone = removable(SPEC, path)
    if not gone:
        return "required"
    without = drop(put(copied(body), gone, None), gone)
    if gone != path:
        first, words = await settled(case_of(path, without))
        if words:
            return words
    case.edit(copied(without)["spec"])
    last, words = await settled(case)
    if words:  # what held the field must not be empty: it goes as well
        case.edit(copied(body)["spec"])
        last, _ = await settled(case)
    if changes(first, last):
        return "stays"
    return words or ("back" if gone == path else f"back, with {gone.rpartition('.')[2]}")


def case_of(path: str, body: Object) -> Case:
    """A resource, and an operator that allows what the field needs."""
    return Case(body, Settings(template_allow=ALLOWED.get(path, "")))


async def try_value(case: Case, path: str, wanted: Object, before: Effects, value: Any) -> tuple[Step, Effects]:
    """Apply one value to the running resource; gives the state after it."""
    case.edit(wanted["spec"])
    after, words = await settled(case)
    if words:
        return Step(value, refused=words), before
    began_so, _ = await settled(case_of(path, wanted))
    return Step(value, changes(before, after), converged=not changes(after, began_so)), after


def with_value(body: Object, path: str, value: Any) -> Object:
    """The body with the value, and with what the value needs."""
    found = put(copied(body), path, value)
    if not isinstance(value, dict | list) and (path, value) in WITH:
        WITH[path, value](found)
    return found


def value_at(body: Object, path: str) -> Any:
    """The value that the body has there, else the schema's default."""
    at: Any = body
    for step in path.split("."):
        name = step.removesuffix("[]")
        if not isinstance(at, dict) or name not in at:
            return FIELDS[path].get("default")
        at = at[name][0] if step.endswith("[]") else at[name]
    return at


async def rows() -> list[Row]:
    """Every field of the CRD."""
    return [await try_field(path) for path in FIELDS]


def page(found: list[Row]) -> str:
    """The table."""
    lines = [line for row in found for line in lines_of(row)]
    head = ("field", "value", "what follows", "unset again")
    return (
        f"# What each field does\n\n<!-- Made by `{COMMAND}`: every field of the CRD is set, changed and unset against "
        "the operator's own passes. -->\n\nA value is applied to a running resource, and what then differs in its "
        "children, its status, or what the planner and the observer of metrics\nare told is listed. *back*: all is as "
        "before the field was set. Every state is also compared with that of a resource that began so.\n\n"
        f"{table(head, lines)}\n"
    )


def lines_of(row: Row) -> list[tuple[str, str, str, str]]:
    """A field's lines, one a value."""
    unset = {"stays": "the chosen count stays"}.get(row.unset, row.unset)
    return [
        (f"`{row.path}`" if not number else "", f"`{step.value}`", said(row, step), unset if not number else "")
        for number, step in enumerate(row.steps)
    ]


def said(row: Row, step: Step) -> str:
    """What a value did, in one cell."""
    if step.refused:
        return f"refused: {step.refused}"
    if (row.path, step.value) in AS_UNSET if not isinstance(step.value, dict | list) else False:
        return "as when unset"
    places = list(dict.fromkeys(place(at) for at in step.changed))
    more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
    first = f"where the operator allows {ALLOWED[row.path]}: " if row.path in ALLOWED else ""
    return first + (", ".join(f"`{at}`" for at in places[:SHOWN]) + more or ELSEWHERE[row.path])


def place(at: str) -> str:
    """A place in a child without what is the same for all: numbers of arguments, the way to the container."""
    short = at.replace("spec.template.spec.", "pod.").replace("spec.template.metadata.", "pod.metadata.")
    return cell(re.sub(r"\[\d+\]$", "", short).replace(".containers[worker]", "").replace(".containers[router]", ""))


if __name__ == "__main__":
    sys.exit(main(PAGE, COMMAND, lambda: page(asyncio.run(rows()))))
