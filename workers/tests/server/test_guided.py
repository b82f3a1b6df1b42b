"""Guided output and tools: what is asked becomes a schema, the output follows it, calls are read out of it."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_worker.engine import grammar
from tandem_worker.server.calls import CallList, FreeCalls, NamedCall
from tandem_worker.server.choice import whole_calls
from tandem_worker.server.errors import ApiError
from tandem_worker.server.guided import Tool, depth, list_schema, schema_text
from workers.tests.server.test_api import CHAT, CHAT_PATH, PLAIN, PLAIN_PATH, events, post
from workers.tests.transfer.kit import eventually

SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}, "kind": {"enum": ["cat", "dog"]}},
    "required": ["age", "kind"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "pet", "schema": SCHEMA}}
LOOP = {"$defs": {"n": {"$ref": "#/$defs/n"}}, "$ref": "#/$defs/n"}
ASKED = {**CHAT, "response_format": FORMAT, "max_tokens": 150, "ignore_eos": False}
TOOL = {"type": "function", "function": {"name": "adopt", "description": "Adopt a pet.", "parameters": SCHEMA}}
OTHER = {"type": "function", "function": {"name": "leave"}}


def is_pet(text: str) -> bool:
    found = json.loads(text)
    return set(found) == {"age", "kind"} and 0 <= found["age"] <= 99 and found["kind"] in {"cat", "dog"}


# --- schemas ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "levels"), [(1, 0), ({}, 1), ([], 1), ({"a": [{"b": 1}]}, 3), ({"a": 1, "b": {"c": {}}}, 3)]
)
def test_depth(value, levels):
    assert depth(value) == levels


def test_a_schema_that_is_too_deep_is_refused():
    deep = {"type": "object"}
    for _ in range(20):
        deep = {"properties": {"a": deep}}
    with pytest.raises(ApiError, match="levels deep"):
        schema_text(deep, "response_format")


def tool(name: str, **parameters) -> Tool:
    return Tool(type="function", function={"name": name, "parameters": parameters or None})


def test_definitions_of_tools_move_to_the_top():
    one = tool("one", type="object", properties={"x": {"$ref": "#/$defs/x"}}, **{"$defs": {"x": {"type": "null"}}})
    found = list_schema([one, tool("two")], parallel=False)
    assert found["$defs"] == {"x": {"type": "null"}}
    assert found["maxItems"] == 1
    with pytest.raises(ApiError, match="differently"):
        list_schema([one, tool("two", **{"$defs": {"x": {"type": "string"}}})], parallel=True)


@pytest.mark.parametrize("place", ["$defs", "definitions"])
@pytest.mark.parametrize("named", [[1], "x", 1, True])
def test_definitions_that_are_no_object_are_refused(place, named):
    with pytest.raises(ApiError, match=f"{place.strip('$')} of the parameters of 'one' is no object"):
        list_schema([tool("one", **{place: named})], parallel=True)


# --- reading calls ---------------------------------------------------------------------------------------------------

CALL = '{"name": "adopt", "arguments": {"age": 3}}'
TEXTS = [
    pytest.param("just text", "just text", [], id="text"),
    pytest.param(f"<tool_call>\n{CALL}\n</tool_call>", "", [("adopt", {"age": 3})], id="one call"),
    pytest.param(f"Well. <tool_call>{CALL}</tool_call><tool_call>{CALL}</tool_call> Done.", "Well.  Done.",
                 [("adopt", {"age": 3})] * 2, id="two calls between texts"),
    pytest.param(CALL, "", [("adopt", {"age": 3})], id="Llama's way: the object alone"),
    pytest.param('{"name": "leave", "parameters": {}}', "", [("leave", {})], id="parameters"),
    pytest.param('{"name": "unknown", "arguments": {}}', '{"name": "unknown", "arguments": {}}', [], id="no such tool"),
    pytest.param("<tool_call>nonsense</tool_call>", "<tool_call>nonsense</tool_call>", [], id="no JSON"),
    pytest.param(f"<tool_call>{CALL}", "", [("adopt", {"age": 3})], id="the closing mark is missing"),
    pytest.param("a <tool_ca", "a <tool_ca", [], id="half a mark"),
    pytest.param('  {"no": "call"}', '  {"no": "call"}', [], id="another object"),
    pytest.param('say {"name": "leave"}', 'say {"name": "leave"}', [], id="an object within text"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said", "calls"), TEXTS)
@given(cuts=st.lists(st.integers(0, 120), max_size=8))
def test_calls_are_read_however_the_text_is_cut(text, said, calls, cuts):
    borders = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[start:end] for start, end in itertools.pairwise(borders)]
    reader = FreeCalls(frozenset({"adopt", "leave"}))
    got = [reader.push(piece, last=number == len(pieces) - 1) for number, piece in enumerate(pieces)]
    assert "".join(one.text for one in got) == said
    found = [one["function"] for one in whole_calls(got)]
    assert [(one["name"], json.loads(one["arguments"])) for one in found] == calls


def test_a_named_call_streams_its_arguments():
    reader = NamedCall("adopt")
    got = [reader.push(piece, last=piece == "}") for piece in ('{"age"', ":3", "", "}")]
    assert [bool(one.calls) for one in got] == [True, True, False, True]
    (call,) = whole_calls(got)
    assert (call["function"], call["type"]) == ({"name": "adopt", "arguments": '{"age":3}'}, "function")


def test_a_list_of_calls_that_is_cut_short_is_text():
    reader = CallList()
    assert reader.push('[{"name":', last=False).text == ""
    assert reader.push(' "adopt"', last=True).text == '[{"name": "adopt"'


# --- served ----------------------------------------------------------------------------------------------------------

REFUSED = [
    pytest.param({"response_format": {"type": "json_schema"}}, "json_schema", id="no schema"),
    pytest.param({"response_format": {"type": "xml"}}, "response_format", id="another form"),
    pytest.param({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "none of tools",
                 id="another function"),
    pytest.param({"tool_choice": "required"}, "needs tools", id="no tools"),
    pytest.param({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "name", id="a name with a blank"),
    pytest.param({"tools": [TOOL] * 129}, "tools", id="many tools"),
    pytest.param({"tools": [TOOL], "tool_choice": "required", "response_format": FORMAT}, "cannot both", id="both"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "words"), REFUSED)
async def test_refusals(worker, changes, words):
    status, _, answer = await post(worker, CHAT_PATH, {**CHAT, **changes})
    assert (status, words in answer["error"]["message"]) == (400, True), answer


async def test_without_the_library_it_is_said_so(worker, monkeypatch):
    monkeypatch.setattr(grammar, "find_spec", lambda _: None)
    monkeypatch.setattr(worker.engine, "_grammars", grammar.Grammars(str, 256, (2,)))  # the worker's own may be loaded
    status, _, answer = await post(worker, CHAT_PATH, {**ASKED, "response_format": {"type": "json_object"}})
    assert status == 400
    assert "llguidance" in answer["error"]["message"]
    status, _, _ = await post(worker, CHAT_PATH, {**CHAT, "tools": [TOOL]})  # the model is free: no library is needed
    assert status == 200


@pytest.mark.parametrize("temperature", [0, 1.3])
@pytest.mark.parametrize("way", ["local", "pair"])
async def test_the_output_follows_its_schema_from_the_first_token_on(pair, way, temperature):
    prefill, decode = pair
    head = {"x-tandem-prefill": prefill.kv_address} if way == "pair" else {}
    body = {**ASKED, "temperature": temperature, "seed": 2, "n": 2}
    status, headers, answer = await post(decode, CHAT_PATH, body, head)
    assert (status, headers["x-tandem-path"]) == (200, "disaggregated" if way == "pair" else "local"), answer
    for choice in answer["choices"]:
        assert is_pet(choice["message"]["content"])
        assert choice["finish_reason"] == "stop"
    await eventually(lambda: decode.is_empty() and prefill.is_empty(), "both are empty")


async def test_ignore_eos_does_not_outlive_a_schema(worker):
    _, _, answer = await post(worker, PLAIN_PATH, {**PLAIN, "response_format": FORMAT, "max_tokens": 150})
    assert is_pet(answer["choices"][0]["text"])


async def test_json_object_is_an_object(worker):
    body = {**ASKED, "response_format": {"type": "json_object"}, "max_tokens": 60}
    _, _, answer = await post(worker, CHAT_PATH, body)
    assert answer["choices"][0]["message"]["content"].lstrip().startswith("{")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"min_tokens": 5}, "min_tokens"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": LOOP}}}, "no output can begin"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "strange"}}}}, "schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "http://x/y"}}}}, "schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"description": "x" * 40_000}}}},
            "32768 bytes",
        ),
    ],
)
async def test_schemas_that_cannot_be_served(worker, changes, words):
    status, _, answer = await post(worker, CHAT_PATH, {**ASKED, **changes})
    assert (status, words in answer["error"]["message"]) == (400, True), answer
    assert worker.is_empty()


async def test_a_required_tool_is_called(pair):
    prefill, decode = pair
    body = {**CHAT, "tools": [TOOL, OTHER], "tool_choice": "required", "parallel_tool_calls": False,
            "max_tokens": 300, "logit_bias": {}}  # fmt: skip
    _, _, answer = await post(decode, CHAT_PATH, body, {"x-tandem-prefill": prefill.kv_address})
    choice = answer["choices"][0]
    if choice["finish_reason"] == "tool_calls":
        (call,) = choice["message"]["tool_calls"]
        assert call["function"]["name"] in {"adopt", "leave"}
        assert choice["message"]["content"] is None
        json.loads(call["function"]["arguments"])
    else:  # `leave` takes any object, which a random model may not end
        assert '"leave"' in choice["message"]["content"]


async def test_a_named_tool_is_called_streamed_and_whole(worker):
    body = {**CHAT, "tools": [TOOL, OTHER], "tool_choice": {"type": "function", "function": {"name": "adopt"}},
            "max_tokens": 150}  # fmt: skip
    _, _, answer = await post(worker, CHAT_PATH, body)
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert is_pet(call["function"]["arguments"])
    assert answer["choices"][0]["finish_reason"] == "stop"
    _, lines = await events(worker, CHAT_PATH, body)
    deltas = [json.loads(line)["choices"][0]["delta"] for line in lines[:-1]]
    pieces = [one["function"]["arguments"] for delta in deltas for one in delta.get("tool_calls", [])]
    assert "".join(pieces) == call["function"]["arguments"]


async def test_a_conversation_with_calls_renders(worker):
    call = {"id": "call_1", "type": "function", "function": {"name": "adopt", "arguments": '{"age": 3}'}}
    messages = [*CHAT["messages"], {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_1", "content": "done"}]  # fmt: skip
    status, _, answer = await post(worker, CHAT_PATH, {**CHAT, "messages": messages, "tools": [TOOL]})
    assert status == 200, answer
    call["function"]["arguments"] = "{"
    status, _, answer = await post(worker, CHAT_PATH, {**CHAT, "messages": messages})
    assert (status, "no JSON" in answer["error"]["message"]) == (400, True)


async def test_while_calls_are_held_back_the_stream_does_not_fall_silent(worker):
    body = {**CHAT, "tools": [TOOL], "tool_choice": "required", "max_tokens": 40}
    _, lines = await events(worker, CHAT_PATH, {**body, "stream_options": {"include_usage": True}})
    chunks = [json.loads(line) for line in lines[:-1]]
    assert len(chunks) == chunks[-1]["usage"]["completion_tokens"] + 1
