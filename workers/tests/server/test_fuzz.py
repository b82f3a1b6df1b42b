"""Whatever a client sends: an answer, or an error in OpenAI's form. No 500, no hang, nothing held afterwards."""

import asyncio
import json

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workers.tests.transfer.kit import eventually

LIMIT_S = 120.0  # a request of a few tokens on a loaded machine; a hang is longer
PATHS = ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"]
BASE = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Hi"}],
    "prompt": "Hi",
    "tokens": [5],
    "max_tokens": 2,
}

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**65), 2**65), st.integers(-2, 5), st.floats(), st.text(max_size=8)
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system", "assistant", "tool", "x"]) | values},
        optional={"content": values, "tool_calls": values, "name": values},
    ),
    max_size=3,
)
likely = {
    "n": st.integers(-1, 4), "temperature": st.floats(-1, 3), "top_p": st.floats(-0.5, 1.5),
    "top_k": st.integers(-3, 9),
    "min_p": st.floats(-0.5, 1.5), "presence_penalty": st.floats(-3, 3), "frequency_penalty": st.floats(-3, 3),
    "repetition_penalty": st.floats(-1, 3), "min_tokens": st.integers(-1, 4), "seed": st.integers(-(2**64), 2**64),
    "logit_bias": st.dictionaries(st.integers(-1, 300).map(str), st.floats(-120, 120), max_size=4),
    "stop": st.text(max_size=3) | st.lists(st.text(max_size=3), max_size=20),
    "logprobs": st.booleans() | st.integers(-1, 9),
    "top_logprobs": st.integers(-1, 25), "stop_token_ids": st.lists(st.integers(-1, 300), max_size=4),
    "stream": st.booleans(), "stream_options": st.fixed_dictionaries({"include_usage": st.booleans()}),
    "prompt": st.lists(st.text(max_size=4) | st.integers(-1, 300), max_size=4), "echo": st.booleans(),
    "ignore_eos": st.booleans(), "priority": st.integers(-(2**33), 2**33), "messages": messages,
    "response_format": st.fixed_dictionaries({"type": st.sampled_from(["text", "json_object", "json_schema", "x"])},
                                             optional={"json_schema": values}),
    "tools": st.lists(st.fixed_dictionaries({"type": st.just("function")}, optional={"function": values}), max_size=2),
    "tool_choice": st.sampled_from(["none", "auto", "required", "x"]) | values,
}  # fmt: skip
fields = st.fixed_dictionaries({}, optional={name: one | values for name, one in likely.items()})


async def sent(worker, path, raw, headers=None):
    """(status, body)."""
    timeout = aiohttp.ClientTimeout(total=LIMIT_S)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.post(worker.url + path, data=raw, headers=headers) as got,
    ):
        return got.status, await got.read()


def check(status: int, body: bytes) -> None:
    body.decode()
    if status != 200:
        assert status in {400, 404, 413, 415}, body
        assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}


fuzz = settings(deadline=None, max_examples=120, suppress_health_check=list(HealthCheck))


@fuzz
@given(path=st.sampled_from(PATHS), changes=fields, gone=st.sets(st.sampled_from(sorted(BASE)), max_size=1))
async def test_fields_of_any_value(worker, path, changes, gone):
    body = {name: value for name, value in {**BASE, **changes}.items() if name not in gone}
    if not isinstance(body.get("max_tokens"), int):
        body["max_tokens"] = 2
    check(*await sent(worker, path, json.dumps(body).encode(errors="surrogatepass")))


@fuzz
@given(path=st.sampled_from(PATHS), at=st.integers(0, 200), junk=st.binary(min_size=1, max_size=4))
async def test_damaged_bytes(worker, path, at, junk):
    raw = json.dumps(BASE).encode()
    check(*await sent(worker, path, raw[:at] + junk + raw[at + len(junk) :]))


def body(**changes) -> bytes:
    return json.dumps({**BASE, **changes}).encode()


LARGE = [
    pytest.param(b"[" * 100_000, id="deep list"),
    pytest.param(b'{"a":' * 100_000, id="deep object"),
    pytest.param(b'{"model":"tiny","x":' + b"[" * 5000 + b"]" * 5000 + b"}", id="deep unknown field"),
    pytest.param(body(tools="HERE").replace(b'"HERE"', b"[" + b'{"x":' * 900 + b"1" + b"}" * 900 + b"]"),
                 id="deep tool"),
    pytest.param(body(prompt="x" * 10_000_000), id="prompt of 10 MB"),
    pytest.param(body(prompt="x" * 3_000_000), id="prompt of 3 MB"),
    pytest.param(body(prompt=[5] * 600_000, tokens=[300] * 600_000), id="many ids"),
    pytest.param(body(prompt=["x"] * 300_000, tokens=["x"] * 300_000), id="many prompts"),
    pytest.param(body(messages=[{"role": "user", "content": "x" * 3_000_000}]), id="3 MB"),
    pytest.param(body(messages=[{"role": "user"}] * 100_000), id="many messages"),
    pytest.param(body(stop=["x"] * 10_000, n=1000), id="many stops"),
    pytest.param(body(logit_bias={str(at): 1 for at in range(100_000)}), id="many biases"),
    pytest.param(json.dumps(BASE).encode().replace(b"Hi", b"\xff\xfe"), id="invalid UTF-8"),
    pytest.param(json.dumps(BASE).encode().replace(b"Hi", b"\\ud800"), id="lone surrogate"),
    pytest.param(json.dumps(BASE).encode("utf-16"), id="UTF-16"),
]  # fmt: skip


@pytest.mark.parametrize("raw", LARGE)
async def test_large_and_strange_bodies(worker, raw):
    for path in PATHS:
        status, body = await sent(worker, path, raw)
        check(status, body)
    await eventually(worker.is_empty, "nothing is held")
    check(*await sent(worker, PATHS[0], json.dumps(BASE)))


async def test_a_body_that_does_not_decompress(worker):
    check(*await sent(worker, PATHS[0], b"no gzip at all", {"Content-Encoding": "gzip"}))


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_another_method_is_refused_in_the_same_form(worker, method):
    async with aiohttp.ClientSession() as session, session.request(method, worker.url + PATHS[0]) as got:
        assert got.status == 405
        assert (await got.json())["error"]["type"] == "invalid_request_error"


async def test_the_worker_is_empty_after_many_broken_streams(worker):
    async def leave() -> None:
        async with aiohttp.ClientSession() as session:
            body = json.dumps({**BASE, "max_tokens": 300, "stream": True, "n": 3, "ignore_eos": True})
            async with session.post(worker.url + PATHS[0], data=body) as got:
                await got.content.readany()

    await asyncio.gather(*(leave() for _ in range(6)))
    await eventually(worker.is_empty, "nothing is held")
