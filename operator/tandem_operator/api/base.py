"""What every part of the resource is made of: the pydantic base, the rules that cross fields, and bounded types."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainSerializer,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema


@dataclass(frozen=True, slots=True)
class Rule:
    """A demand that crosses fields, twice: CEL for the API server, Python for an operator beside an older CRD.

    `cel` is empty where the schema itself demands it (unique list-map keys). `field` is relative to the part that holds
    the rule (`.initial`). Messages have no numbers in them: CEL cannot bound what `string(int)` costs.
    """

    message: str
    holds: Callable[[Any], bool]
    cel: str = ""
    field: str = ""

    def as_validation(self) -> dict[str, str]:
        """The rule as an entry of `x-kubernetes-validations`."""
        found = {"rule": self.cel, "message": self.message}
        if self.field:
            found["fieldPath"] = self.field
        return found


class Part(BaseModel):
    """One object of the resource: snake_case here, camelCase on the wire; a docstring below a field is its manual.

    Unknown fields are dropped, so that an older operator survives a newer CRD.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="ignore",
        frozen=True,
        use_attribute_docstrings=True,
    )

    rules: ClassVar[tuple[Rule, ...]] = ()

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Carry the rules in the JSON schema, where the CRD's generator finds them."""
        schema = handler.resolve_ref_schema(handler(core))
        if validations := [rule.as_validation() for rule in cls.rules if rule.cel]:
            schema["x-kubernetes-validations"] = validations
        return schema

    def to_wire(self) -> dict[str, Any]:
        """The part as the API server holds it: camelCase, JSON types, nothing that is unset."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def broken_rules(part: Part, path: str) -> Iterator[str]:
    """Every rule of the part, and of the parts in it, that does not hold, as `path: message`."""
    for rule in part.rules:
        if not rule.holds(part):
            yield f"{path}{rule.field}: {rule.message}"
    for name, field in type(part).model_fields.items():
        yield from _broken_below(getattr(part, name), f"{path}.{field.alias or name}")


def _broken_below(value: object, path: str) -> Iterator[str]:
    if isinstance(value, Part):
        yield from broken_rules(value, path)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _broken_below(item, f"{path}[{index}]")


def whole(factory: type[Part]) -> Any:
    """A field whose default is the part with all its defaults.

    Written out in full: the API server checks a CRD's defaults against the rules before it fills in nested defaults. A
    part that is empty without its defaults stays unset, so that stored objects hold what somebody wrote; rules ask
    `has()`.
    """
    default = _without_empty(factory().to_wire())
    return Field(default_factory=factory, json_schema_extra={"default": default} if default else None)


def _without_empty(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    inner = {key: _without_empty(item) for key, item in value.items()}
    return {key: item for key, item in inner.items() if item not in ({}, [])}


def _clip(limit: int) -> Callable[[object], object]:
    def clip(value: object) -> object:
        return value[: limit - 1] + "…" if isinstance(value, str) and len(value) > limit else value

    return clip


def _to_second(value: datetime) -> datetime:
    return value.astimezone(UTC).replace(microsecond=0)


def _rfc3339(value: datetime) -> str:
    return value.strftime("%Y-%m-%dT%H:%M:%SZ")


# Whole seconds, as metav1.Time: what was written and what is read back are equal, so an idle pass writes nothing.
Instant = Annotated[AwareDatetime, AfterValidator(_to_second), PlainSerializer(_rfc3339, when_used="json")]

# A sentence of the operator's own: clipped rather than refused, since a status that cannot be written says nothing.
Sentence = Annotated[str, BeforeValidator(_clip(4096)), Field(max_length=4096)]
ConditionMessage = Annotated[str, BeforeValidator(_clip(32768)), Field(max_length=32768)]

# DNS label that starts with a letter, as Services want it.
DNS_LABEL = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
LabelKey = Annotated[
    str,
    Field(
        min_length=1,
        max_length=317,
        pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
    ),
]
LabelValue = Annotated[str, Field(max_length=63, pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")]
# resource.Quantity; the same pattern that Kubernetes' own generated schemas carry.
Quantity = (
    Annotated[int, Field(ge=0, le=2**53)]
    | Annotated[
        str,
        Field(
            min_length=1,
            max_length=32,
            pattern=r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
        ),
    ]
)
# Kubernetes objects that this API passes on unread.
Opaque = dict[str, Any]
Count = Annotated[int, Field(ge=0, le=1_000_000)]
