"""The reference pages that are made of the models: docs/reference/resource.md and conditions.md."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from tandem_operator.api.catalogue import CATALOGUE, GIB, GIGABIT, Accelerator
from tandem_operator.api.conditions import CONDITIONS, REASONS, ConditionType
from tandem_operator.api.constants import API_VERSION, KIND
from tandem_operator.api.decision_reasons import DECISION_REASONS
from tandem_operator.api.node_labels import PRODUCT_LABEL, SOURCES
from tandem_operator.api.schema import Schema

MADE = "<!-- Made by `python -m tandem_operator.api.crd`; edit the models instead. -->"


def resource_page(schema: Schema) -> str:
    """Every field with its type, bounds, default and meaning."""
    parts = [
        f"# {KIND}",
        MADE,
        f"`{API_VERSION}`, short name `di`. `kubectl explain di.spec` says the same.",
    ]
    for part in ("spec", "status"):
        rows = _rows(schema["properties"][part], part)
        parts += [f"## {part}", _table(("field", "type", "default", "meaning"), rows)]
    parts += ["## Rules that cross fields", _table(("at", "rule"), _rules(schema, ""))]
    return "\n\n".join(parts) + "\n"


def conditions_page() -> str:
    """Every condition and every reason of a decision, and what to do about each."""
    parts = ["# Conditions and reasons", MADE]
    for condition in CONDITIONS:
        parts += [f"## {condition.name}", _about(condition), _reasons(condition)]
    rows = ((f"`{r.name}`", r.meaning, r.action) for r in DECISION_REASONS)
    table = _table(("reason", "meaning", "what to do"), rows)
    parts += ["## status.decision", "What the planner wants, and why.", table]
    return "\n\n".join(parts) + "\n"


SHARES: Final = (
    "A share of a card is not the card: where GPU feature discovery adds a suffix to the product (`-SHARED` for "
    "time-slicing and MPS, `-MIG-1g.10gb` and the like with MIG's single strategy), no entry accepts the node. One of "
    "your own in the catalogue ConfigMap, with the share's figures, can. GKE labels such a node with the whole card's "
    "name all the same (`cloud.google.com/gke-gpu-partition-size` and `gke-gpu-sharing-strategy` tell the share): keep "
    "those node pools out with `hardware.nodeSelector` or a taint of their own."
)


def hardware_page() -> str:
    """The built-in catalogue: figures of each accelerator, and the labels by which nodes are known to have it."""
    figures = (
        (
            f"`{e.name}`",
            f"{e.flops['bfloat16'] / 1e12:g}",
            f"{e.memory_bytes / GIB:.0f}",
            f"{e.bandwidth / 1e9:g}",
            f"{e.link / GIGABIT:g}",
            f"{e.scale_up / 1e9:g}",
            f"{e.watts:g}",
            f"{e.price_per_hour:g}",
            f"`{e.resource}`" if e.resource else "",
        )
        for e in CATALOGUE.values()
    )
    head = ("accelerator", "bf16 TFLOP/s", "GiB", "GB/s", "network Gb/s", "scale-up GB/s", "W", "$/h", "resource")
    parts = [
        "# The hardware catalogue",
        MADE,
        "Where the figures come from: `api/catalogue.py`.",
        _table(head, figures),
    ]
    labels = ((f"`{e.name}`", key, ", ".join(values)) for e in CATALOGUE.values() for key, values in _labels(e))
    parts += ["## Labels", "Any of them is enough.", _table(("accelerator", "label", "values"), labels), SHARES]
    parts += ["Where they are from:", _table(("label", "source"), iter(SOURCES.items()))]
    return "\n\n".join(parts) + "\n"


def _labels(entry: Accelerator) -> list[tuple[str, tuple[str, ...]]]:
    product = [(PRODUCT_LABEL, entry.products)] if entry.products else []
    return [*product, *entry.labels.items()]


def _about(condition: ConditionType) -> str:
    return condition.question + (" Absent when all is well." if condition.abnormal else "")


def _reasons(condition: ConditionType) -> str:
    rows = ((r.status, f"`{r.name}`", r.meaning, r.action) for r in REASONS if r.condition == condition.name)
    return _table(("status", "reason", "meaning", "what to do"), rows)


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _rows(schema: Schema, path: str) -> Iterator[tuple[str, ...]]:
    required = schema.get("required", [])
    for name, field in schema.get("properties", {}).items():
        here = f"{path}.{name}"
        default = "required" if name in required else _default(field)
        yield f"`{here}`", _type(field), default, field["description"]
        yield from _below(field, here)


def _below(field: Schema, here: str) -> Iterator[tuple[str, ...]]:
    """The fields of an object, of a list's items, or of a map's values."""
    if "items" in field:
        yield from _rows(field["items"], f"{here}[]")
    elif isinstance(field.get("additionalProperties"), dict):
        yield from _rows(field["additionalProperties"], f"{here}.<name>")
    else:
        yield from _rows(field, here)


def _default(field: Schema) -> str:
    return f"`{json.dumps(field['default'])}`" if field.get("default") not in (None, {}) else ""


def _type(field: Schema) -> str:
    if field.get("x-kubernetes-int-or-string"):
        return "quantity"
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if "items" in field:
        return f"list of {_type(field['items'])}, at most {field['maxItems']}"
    if "additionalProperties" in field:
        return f"map of {_type(field['additionalProperties'])}, at most {field['maxProperties']}"
    return str(field["type"]) + _bounds(field)


def _bounds(field: Schema) -> str:
    if "minimum" in field:
        return f", {field['minimum']} to {field['maximum']}"
    return f", at most {field['maxLength']} characters" if "maxLength" in field else ""


def _rules(schema: Schema, path: str) -> Iterator[tuple[str, ...]]:
    for rule in schema.get("x-kubernetes-validations", []):
        yield f"`{(path + rule.get('fieldPath', '')).strip('.')}`", str(rule["message"])
    for key, below in _children(schema):
        yield from _rules(below, path + key)


def _children(schema: Schema) -> Iterator[tuple[str, Any]]:
    for name, field in schema.get("properties", {}).items():
        yield f".{name}", field
    if "items" in schema:
        yield "[]", schema["items"]
