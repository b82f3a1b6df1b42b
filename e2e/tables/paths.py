"""Paths into a resource as the API spells them: `spec.pools[].replicas.min`; `[]` is the first item of a list."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Object = dict[str, Any]


def leaves(schema: Object, path: str) -> Iterator[tuple[str, Object]]:
    """Every field of a schema that holds a value of its own, with its path."""
    items = schema.get("items") or {}
    if "properties" in schema:
        for name, below in schema["properties"].items():
            yield from leaves(below, f"{path}.{name}")
    elif "properties" in items:
        yield from leaves(items, f"{path}[]")
    else:
        yield path, schema


def required(schema: Object, path: str) -> bool:
    """Must the field be there, wherever what holds it is?"""
    holder = schema
    _, *steps, last = path.split(".")
    for step in steps:
        holder = holder["properties"][step.removesuffix("[]")]
        holder = holder["items"] if step.endswith("[]") else holder
    return last in holder.get("required", ())


def removable(schema: Object, path: str) -> str:
    """The field, or else the nearest that holds it, that may be left out; '' where all of them must be there."""
    while path.count(".") and required(schema, path):
        path = path.rpartition(".")[0].removesuffix("[]")
    return path if path.count(".") else ""


def put(body: Object, path: str, value: Any) -> Object:
    """The body with a value at the path; what is missing on the way is made."""
    *steps, last = path.split(".")
    at: Any = body
    for step in steps:
        name = step.removesuffix("[]")
        if step.endswith("[]"):
            at = (at.setdefault(name, None) or at.__setitem__(name, [{}]) or at[name])[0]
        else:
            at = at.setdefault(name, {})
    at[last] = value
    return body


def drop(body: Object, path: str) -> Object:
    """The body without the value at the path."""
    *steps, last = path.split(".")
    at: Any = body
    for step in steps:
        at = at[step.removesuffix("[]")][0] if step.endswith("[]") else at[step]
    del at[last]
    return body


def flat(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Every single value in a nested one, with where it is; items of a list by their name where they have one."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from flat(inner, f"{at}.{key}" if at else str(key))
    elif isinstance(value, list | tuple) and value:
        for index, inner in enumerate(value):
            name = inner.get("name", index) if isinstance(inner, dict) else index
            yield from flat(inner, f"{at}[{name}]")
    else:
        yield at, value
