"""The request's way, over real sockets."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web

from tandem_router import attempts, proxy
from workers.tests.router.standins import (
    BAD_PAIR,
    DONE,
    FULL,
    TOKENS,
    USAGE,
    USAGE_CHUNK,
    WELL,
    World,
    cancelled,
    chunk,
    dies,
    error,
    refusing_address,
    says,
    stalls,
    streams,
    until,
)

PLAIN = b"".join((*TOKENS, DONE))
WITH_USAGE = b"".join((*TOKENS, USAGE_CHUNK, DONE))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param({}, PLAIN, id="usage was not asked for"),
        pytest.param({"stream_options": {"include_usage": True}}, WITH_USAGE, id="usage was asked for"),
    ],
)
async def test_the_stream_is_spliced_as_it_was_written(world: World, options, expected):
    await world.worker("p0", "prefill")
    decode = await world.worker("d0")
    response, body = await world.stream(**options)
    assert (response.status, body) == (200, expected)
    assert response.headers["x-tandem-path"] == "disaggregated"
    assert response.headers["Content-Type"] == "text/event-stream"
    assert decode.body()["stream_options"] == {"include_usage": True}
    assert world.workers["p0"].seen == []
    await world.idle()
    assert world.value("requests_total", code="200", path="disaggregated") == 1
    assert world.value("slo_requests_total", met="both") == 1
    assert (world.value("prompt_tokens_total"), world.value("output_tokens_total")) == (7, 3)
    assert world.value("time_to_first_token_seconds_count") == world.value("time_per_output_token_seconds_count") == 1


async def test_the_worker_is_told_its_pair_and_nothing_of_the_clients(world: World):
    await world.worker("p0", "prefill")
    decode = await world.worker("d0")
    theirs = {
        "x-tandem-prefill": "evil:1",
        "X-Tandem-Request-Id": "mine",
        "Authorization": "Bearer k",
        "traceparent": "00-t",
    }
    response, _ = await world.ask({"model": "m", "stream": True, "kv_transfer_params": {"a": 1}}, **theirs)
    sent, _body = decode.seen[0]
    sent = {name.lower(): value for name, value in sent.items()}
    assert sent["x-tandem-prefill"] == "kv-of-p0:8001"
    assert sent["x-tandem-prefill-name"] == "p0"
    assert sent["x-tandem-request-id"] == response.headers["x-tandem-request-id"] != "mine"
    assert sent["traceparent"] == "00-t"
    assert "authorization" not in sent
    assert "kv_transfer_params" not in decode.body()


async def test_alone_without_a_prefill_worker(world: World):
    decode = await world.worker("d0")
    await world.stream()
    assert "x-tandem-prefill" not in {name.lower() for name in decode.seen[0][0]}


async def test_not_streamed(world: World):
    await world.worker("d0", behaviour=says(200, {"choices": [{"text": "hi"}], "usage": USAGE}, x_tandem_path="local"))
    response, body = await world.ask({"model": "m", "prompt": "x"}, "/v1/completions")
    assert (response.status, json.loads(body)["usage"]) == (200, USAGE)
    await world.idle()
    assert world.value("requests_total", code="200", path="local") == 1
    assert world.value("slo_requests_total", met="both") == 1
    assert world.value("time_to_first_token_seconds_count") == 0


def closed_port(world: World) -> None:
    world.know("d0", "decode", refusing_address())


@pytest.mark.parametrize(
    "behaviour",
    [
        pytest.param(BAD_PAIR, id="503, another pair"),
        pytest.param(dies, id="reset before the first byte"),
        pytest.param(streams(then="end"), id="an empty stream"),
        pytest.param(FULL, id="429"),
        pytest.param(None, id="nobody listens"),
    ],
)
async def test_another_worker_serves(world: World, behaviour):
    """d0 has less to do, so it is tried first."""
    other = await world.worker("d1")
    world.registry.load("d1").requests += 1
    if behaviour is None:
        closed_port(world)
    else:
        await world.worker("d0", behaviour=behaviour)
    response, body = await world.stream()
    assert (response.status, body) == (200, PLAIN)
    assert len(other.seen) == 1
    assert world.value("retries_total") == 1
    world.registry.load("d1").requests -= 1
    await world.idle()


async def test_a_bad_pair_is_not_tried_again(world: World):
    """Three tries, three pairs, then the story of all this in one error."""
    for name in ("p0", "p1"):
        await world.worker(name, "prefill")
    decodes = [await world.worker(name, behaviour=BAD_PAIR) for name in ("d0", "d1")]
    response, body = await world.stream()
    assert response.status == 503
    assert response.headers["Retry-After"] == "1"
    assert "prefill is gone" in json.loads(body)["error"]["message"]
    pairs = [(d.name, headers.get("x-tandem-prefill-name")) for d in decodes for headers, _ in d.seen]
    assert len(pairs) == len(set(pairs)) == 3
    await world.idle()
    assert world.value("slo_requests_total", met="none") == 1
    assert world.value("requests_total", code="503", path="none") == 1


async def test_a_dead_prefill_worker_costs_one_request_its_tries(world: World):
    """Two decode workers cannot reach it: the third try goes without, and so do the next requests."""

    async def unless_alone(request: web.Request) -> web.StreamResponse:
        return await (BAD_PAIR if "x-tandem-prefill" in request.headers else WELL)(request)

    await world.worker("p0", "prefill")
    for name in ("d0", "d1"):
        await world.worker(name, behaviour=unless_alone)
    for _ in range(3):
        response, body = await world.stream()
        assert (response.status, body) == (200, PLAIN)
    assert world.value("retries_total") == 2


async def test_429_of_all_is_passed_on(world: World):
    standins = [await world.worker(name, behaviour=FULL) for name in ("d0", "d1", "d2")]
    response, body = await world.stream()
    assert (response.status, response.headers["Retry-After"]) == (429, "3")
    assert json.loads(body) == error("queue full")
    assert sum(len(s.seen) for s in standins) == 2
    await world.idle()


async def test_429_of_the_only_worker_is_passed_on(world: World):
    await world.worker("p0", "prefill")
    await world.worker("d0", behaviour=FULL)
    response, _ = await world.stream()
    assert response.status == 429
    await world.idle()


@pytest.mark.parametrize("status", [400, 404, 500, 503])
async def test_other_errors_are_the_clients(world: World, status):
    await world.worker("d0", behaviour=says(status, error("the model says no")))
    await world.worker("d1", behaviour=says(status, error("the model says no")))
    response, body = await world.stream()
    assert (response.status, json.loads(body)) == (status, error("the model says no"))
    assert world.value("retries_total") == 0


async def test_a_worker_that_refused_is_avoided_then(world: World):
    await world.worker("d1")
    closed_port(world)
    for _ in range(4):
        await world.stream()
    assert world.value("retries_total") <= 1


async def test_no_worker_of_a_role(world: World, monkeypatch):
    monkeypatch.setattr(attempts, "WORKER_WAIT_S", 0.02)
    await world.worker("p0", "prefill")
    response, body = await world.stream()
    assert response.status == 503
    assert "Retry-After" in response.headers
    assert "no ready worker has the role decode" in json.loads(body)["error"]["message"]
    await world.idle()


async def test_a_request_waits_for_the_flip_that_brings_its_worker(world: World):
    await world.worker("w0", "prefill")
    asking = asyncio.create_task(world.stream())
    await until(lambda: world.ledger.inflight == 1)
    world.know("w0", "decode", world.workers["w0"].address)
    response, body = await asking
    assert (response.status, body) == (200, PLAIN)


async def test_a_flip_leaves_requests_in_flight_alone(world: World):
    gate = asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(TOKENS[0])
        await gate.wait()
        await response.write(b"".join((*TOKENS[1:], DONE)))
        return response

    flipping = await world.worker("w0", behaviour=slow)
    first = asyncio.create_task(world.stream())
    await until(lambda: world.value("time_to_first_token_seconds_count") == 1)
    world.know("w0", "prefill", flipping.address)
    await world.worker("w1", behaviour=WELL)
    _, second = await world.stream()
    gate.set()
    assert (await first)[1] == second == PLAIN
    assert (len(flipping.seen), len(world.workers["w1"].seen)) == (1, 1)
    assert world.workers["w1"].seen[0][0]["x-tandem-prefill-name"] == "w0"


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        pytest.param(streams(TOKENS[0], TOKENS[1][:9], then="die"), "broke off", id="dies in the middle of an event"),
        pytest.param(streams(TOKENS[0]), "without [DONE]", id="ends without its end"),
        pytest.param(streams(TOKENS[0], then="stall"), "nothing came", id="goes silent"),
    ],
)
async def test_a_stream_that_breaks_ends_in_an_error_event(world: World, behaviour, words):
    world.patient(between_bytes=0.1)
    await world.worker("d0", behaviour=behaviour)
    response, body = await world.stream()
    assert response.status == 200
    assert body.startswith(TOKENS[0] + b"event: error\ndata: ")
    assert DONE not in body
    told = json.loads(body.removeprefix(TOKENS[0]).split(b"data: ", 1)[1])
    assert words in told["error"]["message"]
    await world.idle()
    assert world.value("requests_total", code="502", path="disaggregated") == 1
    assert world.value("slo_requests_total", met="none") == 1


async def test_a_workers_own_error_event_is_passed_on(world: World):
    broken = b"event: error\ndata: " + json.dumps(error("lost the pages")).encode() + b"\n\n"
    await world.worker("d0", behaviour=streams(TOKENS[0], broken))
    _, body = await world.stream()
    assert body == TOKENS[0] + broken
    await world.idle()
    assert world.value("requests_total", code="502", path="disaggregated") == 1


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_no_first_byte_in_time(world: World, stream):
    world.patient(first_byte=0.05, whole_answer=0.05)
    decode = await world.worker("d0", behaviour=stalls)
    response, body = await world.stream(stream=stream)
    assert (response.status, json.loads(body)["error"]["code"]) == (504, "timeout")
    await asyncio.wait_for(decode.gone.wait(), 5)
    await world.idle()


@pytest.mark.parametrize(
    ("behaviour", "met"),
    [
        pytest.param(stalls, 1, id="before the first token"),
        pytest.param(streams(TOKENS[0], then="stall"), 0, id="after it"),
    ],
)
async def test_a_client_that_leaves_is_felt_upstream(world: World, behaviour, met):
    decode = await world.worker("d0", behaviour=behaviour)
    asking = asyncio.create_task(world.stream())
    await until(lambda: decode.seen)
    if not met:
        await until(lambda: world.value("time_to_first_token_seconds_count") == 1)
    assert world.value("inflight") == 1
    await cancelled(asking)
    await asyncio.wait_for(decode.gone.wait(), 5)
    await world.idle()
    assert world.value("slo_requests_total", met="none") == met
    assert sum(world.value("requests_total", code="499", path=path) for path in ("none", "disaggregated")) == 1


async def test_who_waits_for_a_first_token_is_seen(world: World):
    decode = await world.worker("d0", behaviour=stalls)
    assert world.value("oldest_waiting_seconds") == 0
    asking = asyncio.create_task(world.stream())
    await until(lambda: decode.seen)
    assert world.value("oldest_waiting_seconds") > 0
    assert world.value("arrivals_total") == world.value("inflight") == 1
    await cancelled(asking)
    await until(lambda: world.value("oldest_waiting_seconds") == 0)


async def test_a_slow_reader_is_left(world: World):
    """It reads nothing: once the buffers are full the worker is let go."""
    world.patient(slow_reader=0.1)
    decode = await world.worker("d0", behaviour=streams(*[chunk("x" * 60_000)] * 400, DONE))
    reader, writer = await asyncio.open_connection(*world.runner.addresses[0][:2], limit=1024)
    body = b'{"model":"m","stream":true}'
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: r\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    await asyncio.wait_for(decode.gone.wait(), 10)
    await world.idle()
    assert world.value("requests_total", code="499", path="disaggregated") == 1
    writer.close()
    del reader


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        pytest.param("POST", "/v1/chat/completions", b"{", 400, "invalid_json", id="malformed JSON"),
        pytest.param("POST", "/v1/completions", b"x" * (proxy.MAX_BODY + 1), 413, "body_too_large", id="too large"),
        pytest.param("POST", "/v1/embeddings", b"{}", 404, "unknown_url", id="not served"),
        pytest.param("GET", "/admin/reset", None, 404, "unknown_url", id="a worker's own path"),
        pytest.param("GET", "/v1/chat/completions", None, 405, "method_not_allowed", id="wrong method"),
    ],
)
async def test_refusals_are_openai_errors(world: World, method, path, body, status, code):
    decode = await world.worker("d0")
    async with world.client.request(method, world.url + path, data=body) as response:
        told = await response.json()
    assert (response.status, told["error"]["code"]) == (status, code)
    assert set(told["error"]) == {"message", "type", "param", "code"}
    assert decode.seen == []
    assert world.value("slo_requests_total", met="none") == 0


async def test_a_chunked_body_is_capped_too(world: World):
    async def endless():
        for _ in range(proxy.MAX_BODY // 65536 + 2):
            yield b"x" * 65536

    async with world.client.post(world.url + "/v1/completions", data=endless()) as response:
        assert response.status == 413


async def test_too_many_at_once(world: World, monkeypatch):
    monkeypatch.setattr(proxy, "MAX_INFLIGHT", 0)
    response, _ = await world.stream()
    assert (response.status, response.headers["Retry-After"]) == (429, "1")


async def test_looks(world: World):
    async def look(path: str) -> tuple[int, str]:
        async with world.client.get(world.url + path) as response:
            return response.status, await response.text()

    assert await look("/health") == (200, "ok\n")
    assert (await look("/ready"))[0] == 503
    assert (await look("/v1/models"))[0] == 503
    world.know("dead", "decode", refusing_address())
    await world.worker("p0", "prefill", says(418, {"error": "short and stout"}))
    assert (await look("/ready"))[0] == 200
    status, models = await look("/v1/models")
    assert (status, json.loads(models)["data"][0]["id"]) == (200, "m")
    response, said = await world.ask({"prompt": "Hi"}, "/tokenize")
    assert (response.status, said) == (418, b'{"error": "short and stout"}'), "a worker's answer is the client's"
    response, said = await world.ask(b"x" * (proxy.MAX_BODY + 1), "/detokenize")
    assert (response.status, json.loads(said)["error"]["code"]) == (413, "body_too_large")
    status, text = await look("/metrics")
    assert status == 200
    assert 'tandem_router_time_to_first_token_seconds_bucket{le="0.5"}' in text
    assert 'tandem_router_time_per_output_token_seconds_bucket{le="0.04"}' in text
    world.proxy.draining = True
    assert await look("/ready") == (503, "draining\n")
