"""Pydantic's JSON schema → a structural schema, as CRDs want it. What it does not know, it refuses.

Rules of structural schemas: kubernetes.io, "Extend the Kubernetes API with CustomResourceDefinitions".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

KEPT = frozenset(
    {
        "description",
        "enum",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "pattern",
        "required",
        "type",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-list-type",
        "x-kubernetes-validations",
    }
)
DROPPED = frozenset({"title", "$defs"})
FORMATS = frozenset({"date-time"})
INT_OR_STRING = {"integer", "string"}


class UnmappedSchemaError(TypeError):
    """The model says something that a structural schema cannot; change the model or teach this file."""


def structural(model: type[BaseModel], *, defaults: bool) -> Schema:
    """The model's structural schema; `defaults` says whether the API server is to fill them in (spec) or not (status).

    Raises UnmappedSchemaError with the place for every key that is not mapped.
    """
    source = model.model_json_schema(by_alias=True, mode="validation")
    return _Converter(source.get("$defs", {}), defaults=defaults).convert(source, model.__name__)


class _Converter:
    def __init__(self, definitions: Mapping[str, Schema], *, defaults: bool) -> None:
        self._definitions = definitions
        self._defaults = defaults

    def convert(self, source: Schema, at: str) -> Schema:
        source = self._collapse(self._inline(source), at)
        found: Schema = {}
        for key, value in source.items():
            if key in KEPT:  # a copy: a definition is inlined in several places, and rules are added to each by itself
                found[key] = _one_line(value) if key == "description" else deepcopy(value)
            elif key not in DROPPED:
                found.update(self._mapped(key, value, at))
        return dict(sorted(found.items(), key=lambda item: (item[0] not in ("type", "description"), item[0])))

    def _mapped(self, key: str, value: Any, at: str) -> Schema:
        rules: dict[str, Callable[[Any, str], Schema]] = {
            "properties": self._properties,
            "items": lambda item, where: {"items": self.convert(item, f"{where}[]")},
            "additionalProperties": self._additional,
            "default": self._default,
            "const": lambda only, _: {"enum": [only]},
            "exclusiveMinimum": lambda bound, _: {"minimum": bound, "exclusiveMinimum": True},
            "exclusiveMaximum": lambda bound, _: {"maximum": bound, "exclusiveMaximum": True},
            "format": _format,
            "anyOf": _int_or_string,
        }
        if key not in rules:
            raise UnmappedSchemaError(f"{at}: the schema key {key!r} (value {value!r}) has no structural counterpart")
        return rules[key](value, at)

    def _inline(self, source: Schema) -> Schema:
        """Replace `$ref`; what stands beside it wins."""
        if "$ref" not in source:
            return source
        target = self._definitions[source["$ref"].rpartition("/")[2]]
        return self._inline({**target, **{key: value for key, value in source.items() if key != "$ref"}})

    def _collapse(self, source: Schema, at: str) -> Schema:
        """`X or null` → X, without the default null: unset is how this API says nothing."""
        branches = source.get("anyOf", [])
        rest = [branch for branch in branches if branch.get("type") != "null"]
        if len(rest) == len(branches):
            return source
        if len(rest) != 1:
            raise UnmappedSchemaError(f"{at}: a union of {len(rest)} types and null; make it optional siblings")
        beside = {key: value for key, value in source.items() if key != "anyOf"}
        if "default" in beside and beside["default"] is None:
            del beside["default"]
        return {**self._inline(rest[0]), **beside}

    def _properties(self, properties: Schema, at: str) -> Schema:
        return {"properties": {name: self.convert(value, f"{at}.{name}") for name, value in properties.items()}}

    def _additional(self, value: Any, at: str) -> Schema:
        if value is True:  # dict[str, Any]: pruning would empty it
            return {"x-kubernetes-preserve-unknown-fields": True}
        if value is False:
            raise UnmappedSchemaError(f"{at}: additionalProperties false is not structural; pruning does it")
        return {"additionalProperties": self.convert(value, f"{at}{{}}")}

    def _default(self, value: Any, at: str) -> Schema:
        if not self._defaults or value in ({}, []):  # empty and unset mean the same: keep stored objects short
            return {}
        if value is None:
            raise UnmappedSchemaError(f"{at}: a default of null is refused by the API server")
        return {"default": value}


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _format(value: str, at: str) -> Schema:
    if value not in FORMATS:
        raise UnmappedSchemaError(f"{at}: format {value!r} is not checked by the API server; use a pattern")
    return {"format": value}


def _int_or_string(branches: list[Schema], at: str) -> Schema:
    """`int | str` is the one union that Kubernetes knows; each branch's bounds apply to its own type only."""
    if {branch.get("type") for branch in branches} != INT_OR_STRING or len(branches) != len(INT_OR_STRING):
        raise UnmappedSchemaError(f"{at}: a union other than int | str; make it optional siblings with a rule")
    bounds = {key: value for branch in branches for key, value in branch.items() if key in KEPT - {"type"}}
    return {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "x-kubernetes-int-or-string": True,
        **bounds,
    }
