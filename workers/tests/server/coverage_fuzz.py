"""`make fuzz ARGS="[libFuzzer's options]"`: bodies that reach new lines of what reads them.

Atheris instruments that code and keeps what reached something new; no engine runs. Any error but ApiError, which
becomes OpenAI's, ends it: a client would see a 500. JSON itself is read by pydantic's own code, which it cannot see
into, so it exchanges values of valid bodies and no bytes.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator
from typing import Any

import atheris

with atheris.instrument_imports(include=["tandem_worker.server"]):
    from tandem_worker.server.bodies import ChatBody, CompletionBody, parse_body
    from tandem_worker.server.errors import ApiError

SAID = {"role": "user", "content": "Hi"}
FUNCTION = {"name": "f", "parameters": {"type": "object", "$defs": {"a": {}}}}
TOOLS = [{"type": "function", "function": FUNCTION}]
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SCHEMA = {"type": "object", "properties": {"b": {"$ref": "#/$defs/a"}}}
SEEDS = [
    {"messages": [SAID], "max_tokens": 2, "stop": ["a"], "logit_bias": {"5": 1}, "logprobs": True, "top_logprobs": 2},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "tools": TOOLS,
     "tool_choice": "required", "parallel_tool_calls": False},
    {"messages": [{"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": "", "tool_call_id": "1"}],
     "tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}},
    {"prompt": [[1, 2], [3]], "n": 2, "logprobs": 3,
     "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
    {"prompt": "Hi", "echo": False, "suffix": None, "stream": True, "stream_options": {"include_usage": True}},
]  # fmt: skip
VALUES = [
    *(None, True, False, 0, -1, 2**31, 2**64, 0.5, "", "f", "$defs", "\ud800", [], [1], [[]], [{}], {}),
    *({"": None}, {"name": "f"}, {"type": "object"}, {"$ref": "#"}, {"$defs": {}}, {"function": {"name": "f"}}),
]


def one(data: bytes) -> None:
    """A valid body with some of its values exchanged: as either kind, and all that is asked of it in text."""
    choose = atheris.FuzzedDataProvider(data)
    body = {"model": "m", **copy.deepcopy(choose.PickValueInList(SEEDS))}
    for _ in range(choose.ConsumeIntInRange(1, 4)):
        places = list(places_in(body))
        holder, key = places[choose.ConsumeIntInRange(0, len(places) - 1)]
        holder[key] = copy.deepcopy(choose.PickValueInList(VALUES))
    raw = json.dumps(body).encode()
    for kind in (ChatBody, CompletionBody):
        try:
            ask(parse_body(kind, raw))
        except ApiError as error:
            error.problem.body()


def places_in(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each value within it, by what holds it and where; also a place that is not there yet."""
    if isinstance(value, dict):
        yield from ((value, key) for key in (*value, "$defs", "definitions", "parameters"))
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        if isinstance(value, list):
            yield value, key
        if isinstance(inner, dict | list):
            yield from places_in(inner)


def ask(body: ChatBody | CompletionBody) -> None:
    """What the server asks of a body before it is tokenised. Raises ApiError."""
    _ = body.stops, body.biases, body.grammar, body.include_usage, body.wanted_tokens, body.logprob_count
    _ = [message.plain() for message in body.messages] if isinstance(body, ChatBody) else body.prompts


def main() -> None:
    """Never returns: libFuzzer ends the process, with 0 where its time is over."""
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
