"""The protocols of vLLM and SGLang, over real sockets, against stand-ins that check every message."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from tandem_router.engines import ENGINES
from tandem_router.errors import RefusedError
from tandem_router.placement import Ask, Candidate, Nowhere, Pair, Tried, place
from tandem_router.worker import Role, Worker
from workers.tests.router.engines import Pages, Rooms, SglangStandIn, VllmStandIn, no_hook, refusal
from workers.tests.router.standins import DONE, TOKENS, StandIn, World, cancelled, refusing_address, says, until

TOLD = ("x-tandem-path", "x-tandem-worker", "x-tandem-prefill-worker")
ASKED = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20, "min_tokens": 2}
STREAM = b"".join((*TOKENS, DONE))


@pytest.fixture
async def vllm() -> AsyncIterator[World]:
    made = World(ENGINES["vllm"]())
    await made.start()
    yield made
    await made.close()


@pytest.fixture
async def sglang() -> AsyncIterator[World]:
    made = World(ENGINES["sglang"]())
    await made.start()
    yield made
    await made.close()


async def two(world: World, prefill=no_hook, decode=no_hook) -> tuple[Pages, VllmStandIn, VllmStandIn]:
    pages = Pages()
    made = VllmStandIn("p0", pages, prefill), VllmStandIn("d0", pages, decode)
    await world.standin("p0", "prefill", made[0])
    await world.standin("d0", "decode", made[1])
    return pages, *made


async def rooms(world: World, prefill=no_hook, decode=no_hook) -> tuple[Rooms, SglangStandIn, SglangStandIn]:
    found = Rooms()
    made = SglangStandIn("p0", "prefill", found, prefill), SglangStandIn("d0", "decode", found, decode)
    await world.standin("p0", "prefill", made[0])
    await world.standin("d0", "decode", made[1])
    for worker in world.registry.workers:  # bootstrap_port is a number there
        world.registry.put(Worker(worker.name, worker.address, "10.0.0.9:8998", worker.role, ready=True))
    return found, *made


def always(response_of):
    async def hook(body):
        return response_of()

    return hook


# --- vLLM ---


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        pytest.param({"stream": True}, STREAM, id="streamed"),
        pytest.param({"stream": True, "max_completion_tokens": 20}, STREAM, id="both lengths"),
        pytest.param({}, None, id="whole"),
    ],
)
async def test_vllm_prefills_then_decodes(vllm: World, more, expected):
    pages, prefill, decode = await two(vllm)
    response, body = await vllm.ask({**ASKED, **more})
    assert response.status == 200, body
    assert pages.problems == []
    assert (pages.held, prefill.computed, decode.computed) == ({}, 1, 0)
    assert [response.headers[name] for name in TOLD] == ["disaggregated", "d0", "p0"]
    assert expected is None or body == expected
    await vllm.idle()
    assert vllm.value("requests_total", code="200", path="disaggregated") == 1
    assert (vllm.value("prompt_tokens_total"), vllm.value("output_tokens_total")) == (7, 3)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param("/v1/chat/completions", {**ASKED, "n": 2}, id="two answers"),
        pytest.param("/v1/completions", {"model": "m", "prompt": ["a", "b"]}, id="two prompts"),
    ],
)
async def test_vllm_computes_in_one_place_what_shares_pages(vllm: World, path, body):
    _, prefill, decode = await two(vllm)
    response, _ = await vllm.ask(body, path=path)
    assert (response.status, prefill.computed, decode.computed) == (200, 0, 1)
    assert response.headers["x-tandem-path"] == "local"


async def test_vllm_without_a_prefill_worker(vllm: World):
    decode = VllmStandIn("d0", Pages())
    await vllm.standin("d0", "decode", decode)
    response, _ = await vllm.ask(ASKED)
    assert (response.status, response.headers["x-tandem-path"], decode.computed) == (200, "local", 1)


async def test_vllm_prompt_below_a_page_is_computed_by_the_decode_worker(vllm: World):
    short = always(lambda: web.json_response({"choices": [], "kv_transfer_params": None}))
    _, _, decode = await two(vllm, prefill=short)
    response, _ = await vllm.ask(ASKED)
    assert (response.status, decode.computed) == (200, 1)


@pytest.mark.parametrize(
    ("prefill", "decode", "status"),
    [
        pytest.param(lambda: refusal(500), None, 200, id="prefill fails: the decode worker alone"),
        pytest.param(lambda: web.Response(text="[1]"), None, 200, id="prefill answers nonsense"),
        pytest.param(lambda: web.json_response({"kv_transfer_params": [1]}), None, 200, id="parameters are no object"),
        pytest.param(lambda: refusal(400, "too long"), None, 400, id="a bad request is the client's"),
        pytest.param(lambda: refusal(429), None, 200, id="prefill is full"),
        pytest.param(None, lambda: refusal(500), 503, id="decode fails: no other pair"),
    ],
)
async def test_vllm_failures_before_the_first_byte(vllm: World, prefill, decode, status):
    hooks = [always(hook) if hook else no_hook for hook in (prefill, decode)]
    _, _, second = await two(vllm, *hooks)
    response, body = await vllm.ask({**ASKED, "stream": True})
    assert response.status == status, body
    assert status != 200 or body == STREAM
    if status == 400:
        assert b"too long" in body
        assert second.seen == []
    await vllm.idle()


async def test_vllm_an_error_as_the_first_event_is_another_pairs_turn(vllm: World):
    broken = b'data: {"error": {"message": "KV load failed", "code": 500}}\n\n'

    async def first_fails(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(broken)
        return response

    await two(vllm)
    await vllm.standin("d1", "decode", StandIn("d1", first_fails))
    for _ in range(2):
        response, body = await vllm.stream(max_tokens=20)
        assert (response.status, body) == (200, STREAM)
    await vllm.idle()


async def test_vllm_prefill_worker_that_is_gone_is_not_met_again(vllm: World):
    _, _, decode = await two(vllm)
    vllm.know("p0", "prefill", refusing_address())
    response, _ = await vllm.ask(ASKED)
    assert (response.status, decode.computed) == (200, 1)
    assert vllm.value("retries_total") == 1


@pytest.mark.parametrize("field", ["kv_transfer_params", "bootstrap_host", "bootstrap_port", "bootstrap_room"])
async def test_a_client_names_no_address(vllm: World, field):
    pages, _, decode = await two(vllm)
    response, _ = await vllm.ask({**ASKED, field: {"do_remote_prefill": True, "remote_host": "evil"}})
    assert (response.status, pages.problems) == (200, [])
    assert "evil" not in json.dumps([prefilled for _, prefilled in decode.seen], default=bytes.decode)


async def test_vllm_a_client_that_leaves_ends_the_prefill(vllm: World):
    never = asyncio.Event()

    async def stuck(body):
        await never.wait()

    _, prefill, decode = await two(vllm, prefill=stuck)
    asking = asyncio.create_task(vllm.stream())
    await until(lambda: prefill.seen)
    await cancelled(asking)
    await asyncio.wait_for(prefill.gone.wait(), 10)
    assert decode.seen == []
    await vllm.idle()


# --- SGLang ---


@pytest.mark.parametrize(("more", "expected"), [({"stream": True}, STREAM), ({}, None)], ids=["streamed", "whole"])
async def test_sglang_sends_one_body_to_both(sglang: World, more, expected):
    found, prefill, decode = await rooms(sglang)
    response, body = await sglang.ask({**ASKED, **more})
    assert response.status == 200, body
    assert found.problems == []
    assert prefill.body() == decode.body()
    assert (prefill.body()["bootstrap_host"], prefill.body()["bootstrap_port"]) == ("10.0.0.9", 8998)
    assert [response.headers[name] for name in TOLD] == ["disaggregated", "d0", "p0"]
    assert expected is None or body == expected
    await sglang.idle()
    response, _ = await sglang.ask({**ASKED, **more})
    assert len(found.bodies) == 2, "every try has its own room"


@pytest.mark.parametrize(
    ("prefill", "decode", "status"),
    [
        pytest.param(lambda: refusal(500), None, 503, id="prefill fails: the decode worker is not waited for"),
        pytest.param(lambda: refusal(400, "too long"), None, 400, id="a bad request is the client's"),
        pytest.param(None, lambda: refusal(503), 503, id="decode fails"),
    ],
)
async def test_sglang_failures_before_the_first_byte(sglang: World, prefill, decode, status):
    async def after_the_other(body):
        await until(lambda: len(sglang.workers) == 2 and all(worker.seen for worker in sglang.workers.values()))
        return (prefill or decode)()

    hooks = [after_the_other if hook else no_hook for hook in (prefill, decode)]
    _, first, second = await rooms(sglang, *hooks)
    response, body = await sglang.ask({**ASKED, "stream": True})
    assert response.status == status, body
    waiting = second if prefill else first
    await asyncio.wait_for(waiting.gone.wait(), 10)
    await sglang.idle()


async def test_sglang_a_client_that_leaves_ends_both(sglang: World):
    never = asyncio.Event()

    async def stuck(body):
        await never.wait()

    _, prefill, decode = await rooms(sglang, prefill=stuck, decode=stuck)
    asking = asyncio.create_task(sglang.stream())
    await until(lambda: prefill.seen and decode.seen)
    await cancelled(asking)
    await asyncio.wait_for(asyncio.gather(prefill.gone.wait(), decode.gone.wait()), 10)
    await sglang.idle()


async def test_sglang_another_prefill_worker_takes_over(sglang: World):
    found, _, _ = await rooms(sglang, prefill=always(lambda: refusal(500)))
    await sglang.standin("p1", "prefill", SglangStandIn("p1", "prefill", found))
    sglang.registry.put(Worker("p1", sglang.workers["p1"].address, "10.0.0.10:8998", Role.PREFILL, ready=True))
    for _ in range(2):
        response, body = await sglang.ask({**ASKED, "stream": True})
        assert (response.status, body) == (200, STREAM)
    assert response.headers["x-tandem-prefill-worker"] == "p1"


async def test_sglang_a_decode_worker_alone_cannot_serve(sglang: World):
    await sglang.standin("d0", "decode", StandIn("d0", says(200, {})))
    async with sglang.client.get(sglang.url + "/ready") as response:
        assert (response.status, "role prefill" in await response.text()) == (503, True)


def worker(name: str, role: str) -> Worker:
    return Worker(name, "10.0.0.1:8000", "10.0.0.1:8998", Role(role), ready=True)


PAIR = Pair(worker("p0", "prefill"), worker("d0", "decode"), "")


@pytest.mark.parametrize(
    ("prompt", "rooms_made"),
    [
        pytest.param("text", None, id="text"),
        pytest.param([1, 2, 3], None, id="token ids"),
        pytest.param(["a", "b"], 2, id="two texts"),
        pytest.param([[1], [2], [3]], 3, id="three lists of ids"),
    ],
)
def test_sglang_every_prompt_has_its_room(prompt, rooms_made):
    errand = ENGINES["sglang"]().errand(PAIR, json.dumps({"prompt": prompt}).encode())
    body = json.loads(errand.prefill_body)
    if rooms_made is None:
        assert isinstance(body["bootstrap_room"], int)
        return
    assert len(set(body["bootstrap_room"])) == rooms_made
    assert body["bootstrap_host"] == ["10.0.0.1"] * rooms_made
    assert body["bootstrap_port"] == [8998] * rooms_made


def test_sglang_refuses_what_would_share_a_room():
    with pytest.raises(RefusedError, match="n above 1"):
        ENGINES["sglang"]().errand(PAIR, b'{"n": 2}')


@pytest.mark.parametrize(
    ("role", "works_alone", "served"),
    [("decode", True, True), ("decode", False, False), ("both", False, True)],
)
def test_who_may_do_the_whole_job(role, works_alone, served):
    found = place(Ask(10), [Candidate(worker("d0", role))], Tried(), 0, works_alone=works_alone)
    assert isinstance(found, Pair) is served
    assert served or (isinstance(found, Nowhere) and found.role is Role.PREFILL)
