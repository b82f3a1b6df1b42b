"""What a body says about the form of its output: response_format, tools and tool_choice, and the schema they give."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from tandem_worker.server.base import Body, Text, Word
from tandem_worker.server.errors import bad_request

DEPTH_AT_MOST: Final = 32  # of a schema's objects and lists, one within the other
TOOLS_AT_MOST: Final = 128
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Schema = dict[str, Any]


class JsonSchema(Body):
    """`response_format.json_schema`."""

    name: Word = ""
    wanted: Annotated[Schema, Field(alias="schema")]


class ResponseFormat(Body):
    """`response_format`."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: JsonSchema | None = None


class Function(Body):
    """A function that the model may call."""

    name: Name
    description: Text | None = None
    parameters: Schema | None = None


class Tool(Body):
    """An entry of `tools`."""

    type: Literal["function"]
    function: Function


class FunctionName(Body):
    """The function of a named choice."""

    name: Name


class NamedChoice(Body):
    """`tool_choice` that names a function."""

    type: Literal["function"]
    function: FunctionName


ToolChoice = Literal["none", "auto", "required"] | NamedChoice


def format_schema(wanted: ResponseFormat | None) -> Schema | None:
    """The schema of a response format; None: any text. Raises ApiError."""
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return {"type": "object"}
    if wanted.json_schema is None:
        raise bad_request("response_format of type json_schema needs its field json_schema", "response_format")
    return wanted.json_schema.wanted


def tool_schema(tools: list[Tool], choice: ToolChoice, *, parallel: bool) -> Schema | None:
    """What the output must be for a choice; None: the model is free (auto, none). Raises ApiError."""
    if isinstance(choice, NamedChoice):
        name = choice.function.name
        found = next((one.function for one in tools if one.function.name == name), None)
        if found is None:
            raise bad_request(f"tool_choice names {name!r}, which is none of tools", "tool_choice")
        return found.parameters or {"type": "object"}
    return list_schema(tools, parallel=parallel) if choice == "required" else None


def list_schema(tools: list[Tool], *, parallel: bool) -> Schema:
    """One call or more, as a list of {name, parameters}. Definitions move to the top, where their references look."""
    shared: Schema = {}
    kinds = []
    for tool in tools:
        parameters = dict(tool.function.parameters or {"type": "object"})
        for place in ("$defs", "definitions"):
            named = parameters.pop(place, None) or {}
            if not isinstance(named, dict):
                raise bad_request(f"{place} of the parameters of {tool.function.name!r} is no object", "tools")
            for name, one in named.items():
                if shared.setdefault(place, {}).setdefault(name, one) != one:
                    raise bad_request(f"two tools define {name!r} differently; rename one of them", "tools")
        kinds.append({
            "type": "object",
            "properties": {"name": {"const": tool.function.name}, "parameters": parameters},
            "required": ["name", "parameters"],
            "additionalProperties": False,
        })  # fmt: skip
    bounds = {"minItems": 1} if parallel else {"minItems": 1, "maxItems": 1}
    return {"type": "array", "items": {"anyOf": kinds}, **bounds, **shared}


def schema_text(schema: Schema, param: str) -> str:
    """As it goes to the engine. Raises ApiError where it is too deep to be worth a parser's time."""
    if depth(schema) > DEPTH_AT_MOST:
        raise bad_request(f"the schema is more than {DEPTH_AT_MOST} levels deep; flatten it", param)
    return json.dumps(schema, separators=(",", ":"), ensure_ascii=False)


def depth(value: Any) -> int:
    """Levels of objects and lists, without recursion."""
    level, layer = 0, [value]
    while layer := [one for one in layer if isinstance(one, dict | list)]:
        level += 1
        layer = [inner for one in layer for inner in (one.values() if isinstance(one, dict) else one)]
    return level
