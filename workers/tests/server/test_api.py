"""The OpenAI API of a real worker (a tiny random model): refusals, shapes, streams, paths, ends."""

# ruff: noqa: A002 (a request's or token's id is called id, as in the engine)

import asyncio
import json
import threading

import aiohttp
import pytest

from tandem_worker.engine import QueueFullError
from tandem_worker.server import write
from workers.tests.server.asking import CHAT, CHAT_PATH, PLAIN, PLAIN_PATH, events, post
from workers.tests.transfer.kit import eventually

REFUSALS = [
    pytest.param(CHAT_PATH, b"{not json", 400, "JSON", None, id="no JSON"),
    pytest.param(CHAT_PATH, b"", 400, "JSON", None, id="empty body"),
    pytest.param(CHAT_PATH, b"[1]", 400, "object", None, id="a list"),
    pytest.param(CHAT_PATH, {"model": "tiny"}, 400, "messages", None, id="no messages"),
    pytest.param(CHAT_PATH, {"messages": CHAT["messages"]}, 400, "model", None, id="no model"),
    pytest.param(CHAT_PATH, {**CHAT, "model": "gpt-5"}, 404, "does not exist", "model_not_found", id="unknown model"),
    pytest.param(CHAT_PATH, {**CHAT, "max_tokens": 0}, 400, "at least 1", None, id="max_tokens 0"),
    pytest.param(CHAT_PATH, {**CHAT, "max_tokens": -4}, 400, "at least 1", None, id="max_tokens negative"),
    pytest.param(CHAT_PATH, {**CHAT, "max_completion_tokens": 0}, 400, "max_completion_tokens", None, id="mct 0"),
    pytest.param(CHAT_PATH, {**CHAT, "max_tokens": "many"}, 400, "max_tokens", None, id="max_tokens text"),
    pytest.param(CHAT_PATH, {**CHAT, "max_tokens": 600}, 400, "maximum context", "context_length_exceeded", id="long"),
    pytest.param(PLAIN_PATH, {**PLAIN, "prompt": "x" * 600}, 400, "maximum context", "context_length_exceeded",
                 id="long prompt"),
    pytest.param(PLAIN_PATH, {**PLAIN, "prompt": ""}, 400, "empty", None, id="empty prompt"),
    pytest.param(PLAIN_PATH, {**PLAIN, "prompt": [1, 999]}, 400, "token ids", None, id="token out of the vocabulary"),
    pytest.param(PLAIN_PATH, {**PLAIN, "prompt": ["a", ""]}, 400, "empty", None, id="one of two prompts is empty"),
    pytest.param(PLAIN_PATH, {**PLAIN, "prompt": ["a"] * 65, "n": 2}, 400, "128 choices", None, id="many prompts"),
    pytest.param(CHAT_PATH, {**CHAT, "n": 1000}, 400, "n: ", None, id="n 1000"),
    pytest.param(CHAT_PATH, {**CHAT, "n": 0}, 400, "n: ", None, id="n 0"),
    pytest.param(CHAT_PATH, {**CHAT, "stop": [f"s{at}" for at in range(10_000)]}, 400, "stop", None, id="many stops"),
    pytest.param(CHAT_PATH, {**CHAT, "logit_bias": {"5": 101}}, 400, "logit_bias", None, id="a bias over 100"),
    pytest.param(CHAT_PATH, {**CHAT, "logit_bias": {"x": 1}}, 400, "token ids", None, id="a bias of no token"),
    pytest.param(CHAT_PATH, {**CHAT, "logit_bias": {"256": 1}}, 400, "0 to 255", None, id="a bias of a strange token"),
    pytest.param(CHAT_PATH, {**CHAT, "min_tokens": 9}, 400, "min_tokens", None, id="min_tokens above max_tokens"),
    pytest.param(CHAT_PATH, {**CHAT, "top_k": -2}, 400, "top_k", None, id="top_k below -1"),
    pytest.param(CHAT_PATH, {**CHAT, "min_p": 1.5}, 400, "min_p", None, id="min_p above 1"),
    pytest.param(CHAT_PATH, {**CHAT, "presence_penalty": -3}, 400, "presence_penalty", None, id="a penalty below -2"),
    pytest.param(CHAT_PATH, b'{"model":"tiny","temperature":NaN,"messages":[]}', 400, "temperature", None, id="NaN"),
    pytest.param(PLAIN_PATH, {**PLAIN, "echo": True}, 400, "echo", "unsupported_parameter", id="echo"),
    pytest.param(CHAT_PATH, {**CHAT, "temperature": 3}, 400, "temperature", None, id="hot"),
    pytest.param(CHAT_PATH, {**CHAT, "top_p": 0}, 400, "top_p", None, id="top_p 0"),
    pytest.param(CHAT_PATH, {**CHAT, "top_logprobs": 2}, 400, "logprobs", None, id="top_logprobs alone"),
    pytest.param(CHAT_PATH, {**CHAT, "logprobs": True, "top_logprobs": 21}, 400, "top_logprobs", None, id="21 of them"),
    pytest.param(CHAT_PATH, {**CHAT, "stop": [""]}, 400, "stop", None, id="empty stop"),
    *[
        pytest.param(CHAT_PATH, {**CHAT, name: value}, 400, name, "unsupported_parameter", id=f"{name} unsupported")
        for name, value in [
            ("best_of", 2), ("functions", [{}]),
        ]
    ],
    pytest.param(CHAT_PATH, {**CHAT, "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400,
                 "image_url", "unsupported_parameter", id="image"),
    pytest.param(CHAT_PATH, {**CHAT, "messages": [{"role": "x", "content": "x"}]}, 400, "role", None, id="role"),
    pytest.param(CHAT_PATH, {**CHAT, "messages": []}, 400, "messages", None, id="no message"),
    pytest.param("/v1/nothing", {}, 404, "Not Found", None, id="no such path"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "status", "words", "code"), REFUSALS)
async def test_refusals_are_openai_errors(worker, path, body, status, words, code):
    got, _, answer = await post(worker, path, body)
    assert got == status
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert words in answer["error"]["message"]
    if code:
        assert answer["error"]["code"] == code
    assert worker.is_empty()


async def test_a_large_body_is_413(worker):
    status, _, answer = await post(worker, CHAT_PATH, b"x" * (4 * 1024 * 1024 + 1))
    assert (status, answer["error"]["code"]) == (413, "body_too_large")


@pytest.mark.parametrize(
    "more",
    [
        {"user": "me", "store": False, "unknown": {"deep": [1]}},
        {"n": 1, "presence_penalty": 0, "logit_bias": {}, "tools": [], "tool_choice": "none"},
        {"response_format": {"type": "text"}, "top_k": -1, "repetition_penalty": 1.0},
        {"stop": None, "seed": None, "stream": None, "logprobs": None},
    ],
    ids=["unknown fields", "values that change nothing", "text format", "nulls"],
)
async def test_what_changes_nothing_is_tolerated(worker, more):
    status, _, answer = await post(worker, CHAT_PATH, {**CHAT, **more})
    assert status == 200, answer


async def test_a_whole_answer(worker):
    status, headers, answer = await post(worker, CHAT_PATH, CHAT)
    assert status == 200
    assert (headers["x-tandem-path"], headers["x-tandem-worker"], headers["x-tandem-prefill-worker"]) == (
        "local",
        "one",
        "",
    )
    choice = answer["choices"][0]
    assert (answer["object"], choice["finish_reason"], choice["message"]["role"]) == (
        "chat.completion",
        "length",
        "assistant",
    )
    usage = answer["usage"]
    assert usage["completion_tokens"] == 8
    assert usage["total_tokens"] == usage["prompt_tokens"] + 8
    assert usage["tandem"] == {"kv_bytes": 0, "prefill_worker": "", "decode_worker": "one", "cached_tokens": 0}


@pytest.mark.parametrize(("path", "body"), [(CHAT_PATH, CHAT), (PLAIN_PATH, PLAIN)], ids=["chat", "plain"])
async def test_a_stream_says_the_same_as_the_whole_answer(worker, path, body):
    _, _, whole = await post(worker, path, body)
    _, lines = await events(worker, path, {**body, "stream_options": {"include_usage": True}})
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 8
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    if path == CHAT_PATH:
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1])
        assert text == whole["choices"][0]["message"]["content"]
        assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    else:
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1]) == whole["choices"][0]["text"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]][-1] == "length"
    assert len({chunk["id"] for chunk in chunks}) == 1


async def test_without_include_usage_there_is_none(worker):
    _, lines = await events(worker, CHAT_PATH, CHAT)
    assert not any("usage" in line for line in lines)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_stop_string_ends_the_answer_before_it(worker, stream):
    _, _, full = await post(worker, PLAIN_PATH, {**PLAIN, "max_tokens": 60})
    text = full["choices"][0]["text"]
    stop = text[20:23]
    body = {**PLAIN, "max_tokens": 60, "stop": [stop]}
    if stream:
        _, lines = await events(worker, PLAIN_PATH, body)
        choices = [json.loads(line)["choices"][0] for line in lines[:-1]]
        got, finish = "".join(choice["text"] for choice in choices), choices[-1]["finish_reason"]
    else:
        _, _, answer = await post(worker, PLAIN_PATH, body)
        got, finish = answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]
    assert (got, finish) == (text[: text.index(stop)], "stop")
    await eventually(worker.is_empty, "the engine was told to stop")


async def test_logprobs(worker):
    _, _, chat = await post(worker, CHAT_PATH, {**CHAT, "logprobs": True, "top_logprobs": 3})
    entries = chat["choices"][0]["logprobs"]["content"]
    assert len(entries) == 8
    for entry in entries:
        assert entry["logprob"] <= 0
        assert len(entry["top_logprobs"]) == 3
        assert entry["top_logprobs"][0]["logprob"] == pytest.approx(entry["logprob"])  # greedy
        assert bytes(entry["bytes"]).decode(errors="replace") == entry["token"]
    _, _, plain = await post(worker, PLAIN_PATH, {**PLAIN, "logprobs": 2})
    found = plain["choices"][0]["logprobs"]
    assert len(found["tokens"]) == len(found["token_logprobs"]) == len(found["text_offset"]) == 8
    assert all(len(top) <= 2 for top in found["top_logprobs"])


async def test_a_seed_repeats_itself(worker):
    body = {**CHAT, "temperature": 1.5, "seed": 77, "max_tokens": 20}
    texts = {(await post(worker, CHAT_PATH, body))[2]["choices"][0]["message"]["content"] for _ in range(3)}
    assert len(texts) == 1


async def test_defaults_of_max_tokens(worker):
    """/v1/completions: OpenAI's 16. Chat: the rest of the context."""
    _, _, plain = await post(worker, PLAIN_PATH, {key: PLAIN[key] for key in PLAIN if key != "max_tokens"})
    assert plain["usage"]["completion_tokens"] == 16
    _, _, chat = await post(worker, CHAT_PATH, {key: CHAT[key] for key in CHAT if key != "max_tokens"})
    assert chat["usage"]["total_tokens"] == 512
    assert chat["choices"][0]["finish_reason"] == "length"


async def test_models_health_and_metrics(worker):
    async with aiohttp.ClientSession() as session:
        async with session.get(worker.url + "/v1/models") as got:
            assert [one["id"] for one in (await got.json())["data"]] == ["tiny"]
        async with session.get(worker.url + "/v1/models/tiny") as got:
            card = await got.json()
            assert (card["max_model_len"], card["object"], card["owned_by"]) == (512, "model", "tandem")
            assert card["created"] > 1_600_000_000
        async with session.get(worker.url + "/v1/models/other") as got:
            assert got.status == 404
        for path in ("/health", "/ready", "/metrics"):
            async with session.get(worker.url + path) as got:
                assert got.status == 200


async def test_a_full_queue_is_429_with_retry_after(worker, monkeypatch):
    def full(*_):
        raise QueueFullError("64 requests wait already", 17)

    monkeypatch.setattr(worker.engine, "submit", full)
    status, headers, answer = await post(worker, CHAT_PATH, CHAT)
    assert (status, headers["Retry-After"], answer["error"]["code"]) == (429, "17", "queue_full")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("way", ["local", "pair"])
async def test_a_client_that_leaves_stops_the_work_within_a_step(pair, way, stream, monkeypatch):
    """Decode steps are let through one by one: three, then the client leaves, then as many as the engine likes."""
    prefill, decode = pair
    steps, compute = threading.Semaphore(3), decode.engine._runner.decode

    def one_step(*facts):
        assert steps.acquire(timeout=60)
        return compute(*facts)

    monkeypatch.setattr(decode.engine._runner, "decode", one_step)
    head = {"x-tandem-prefill": prefill.kv_address} if way == "pair" else {}
    body = json.dumps({**CHAT, "max_tokens": 450, "stream": stream})
    async with aiohttp.ClientSession() as session:
        request = asyncio.create_task(session.post(decode.url + CHAT_PATH, data=body, headers=head))
        await eventually(lambda: decode.engine.stats().decode_steps >= 3, "it decodes")
        if stream:
            (await request).close()
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        await eventually(lambda: decode.service.active == 0, "the server has noticed")
    steps.release(1000)
    await eventually(lambda: decode.is_empty() and prefill.is_empty(), "both are empty")
    assert decode.engine.stats().decode_steps <= 4


async def test_a_client_that_reads_nothing_is_let_go(worker, monkeypatch):
    """Its buffers fill, a write waits too long, the request is cancelled."""
    monkeypatch.setattr(write, "WRITE_S", 0.3)
    monkeypatch.setattr(worker.service.loaded.tokenizer, "decode_stream", Flood)
    _reader, writer = await asyncio.open_connection("127.0.0.1", int(worker.url.rsplit(":", 1)[1]), limit=1)
    body = json.dumps({**CHAT, "max_tokens": 450, "stream": True}).encode()
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    await eventually(lambda: worker.service.active == 1, "it is being served")
    await eventually(lambda: worker.service.active == 0, "it is let go")
    await eventually(worker.is_empty, "the worker holds nothing")
    writer.close()


class Flood:
    """A decoder that makes a megabyte of each token, so that buffers fill soon."""

    def push(self, id):
        return "x" * 1_000_000

    def flush(self):
        return ""


async def test_choices_are_as_many_as_asked_for(worker):
    body = {**CHAT, "temperature": 1.5, "seed": 3, "n": 3}
    _, _, answer = await post(worker, CHAT_PATH, body)
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert answer["usage"]["completion_tokens"] == 24
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + 24
    _, _, alone = await post(worker, CHAT_PATH, {**body, "n": 1})
    assert alone["choices"][0]["message"]["content"] == texts[0]
    _, lines = await events(worker, CHAT_PATH, body)
    streamed = dict.fromkeys(range(3), "")
    ends = []
    for line in lines[:-1]:
        (choice,) = json.loads(line)["choices"]
        streamed[choice["index"]] += choice["delta"].get("content", "")
        ends += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert list(streamed.values()) == texts
    assert ends == ["length"] * 3
    await eventually(worker.is_empty, "nothing is held")


async def test_the_prompt_of_many_choices_is_computed_once(worker):
    before = worker.engine.stats().prefill_tokens
    _, _, answer = await post(worker, PLAIN_PATH, {**PLAIN, "prompt": "y" * 101, "n": 4})
    assert len({choice["text"] for choice in answer["choices"]}) == 1  # greedy
    assert worker.engine.stats().prefill_tokens - before == 101 + 3  # the last token's logits, three times


async def test_several_prompts_are_as_each_alone(worker):
    prompts = ["Trains are", "Bridges carry", [30, 31, 32]]
    alone = [(await post(worker, PLAIN_PATH, {**PLAIN, "prompt": one}))[2]["choices"][0]["text"] for one in prompts[:2]]
    _, _, answer = await post(worker, PLAIN_PATH, {**PLAIN, "prompt": prompts[:2], "n": 2})
    assert [choice["text"] for choice in answer["choices"]] == [alone[0], alone[0], alone[1], alone[1]]
    _, _, ids = await post(worker, PLAIN_PATH, {**PLAIN, "prompt": [[30, 31, 32], [33]]})
    assert len(ids["choices"]) == 2


async def test_a_choice_that_stops_early_leaves_the_others_alone(worker):
    body = {**PLAIN, "temperature": 1.5, "seed": 3, "n": 4, "max_tokens": 60}
    _, _, full = await post(worker, PLAIN_PATH, body)
    texts = [choice["text"] for choice in full["choices"]]
    stop = texts[2][10:12]
    _, _, cut = await post(worker, PLAIN_PATH, {**body, "stop": stop})
    for choice, text in zip(cut["choices"], texts, strict=True):
        assert choice["text"] == text.split(stop)[0]
        assert choice["finish_reason"] == ("stop" if stop in text else "length")
    await eventually(worker.is_empty, "nothing is held")
