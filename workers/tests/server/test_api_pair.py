"""The API of two real workers, one of which prefills for the other: paths, losses, what reaches the other side."""

import asyncio
import json

import pytest

from tandem_worker.engine import QueueFullError
from workers.tests.server.asking import CHAT, CHAT_PATH, PLAIN, PLAIN_PATH, events, post
from workers.tests.transfer.kit import eventually


async def test_a_pair_serves_what_one_serves(pair):
    prefill, decode = pair
    head = {"x-tandem-prefill": prefill.kv_address, "x-tandem-prefill-name": "pod-p", "x-tandem-request-id": "abc-1"}
    _, _, alone = await post(prefill, CHAT_PATH, CHAT)
    status, headers, answer = await post(decode, CHAT_PATH, CHAT, head)
    assert status == 200
    assert (headers["x-tandem-path"], headers["x-tandem-prefill-worker"]) == ("disaggregated", "pod-p")
    assert answer["choices"][0]["message"] == alone["choices"][0]["message"]
    assert answer["usage"]["tandem"]["kv_bytes"] > 0
    assert answer["usage"]["tandem"]["prefill_worker"] == "pod-p"
    assert answer["id"].startswith("chatcmpl-abc-1")
    await eventually(lambda: decode.is_empty() and prefill.is_empty(), "both are empty")


async def test_what_is_cached_is_served_locally(pair):
    prefill, decode = pair
    head = {"x-tandem-prefill": prefill.kv_address}
    paths = []
    for _ in range(2):
        _, headers, answer = await post(decode, PLAIN_PATH, {**PLAIN, "prompt": "x" * 41}, head)
        paths.append(headers["x-tandem-path"])
    assert paths == ["disaggregated", "local"]
    assert answer["usage"]["tandem"]["cached_tokens"] == 40


@pytest.mark.parametrize(
    ("address", "status", "retry"),
    [
        pytest.param("127.0.0.1:9", 503, "pair", id="nobody there"),
        pytest.param("prefill.example:8001", 400, None, id="a name"),
        pytest.param("nonsense", 400, None, id="nonsense"),
    ],
)
async def test_bad_prefill_addresses(worker, address, status, retry):
    got, headers, _ = await post(worker, CHAT_PATH, CHAT, {"x-tandem-prefill": address})
    assert (got, headers.get("x-tandem-retry")) == (status, retry)
    assert worker.is_empty()


async def test_a_busy_prefill_worker_is_429(pair, monkeypatch):
    prefill, decode = pair

    def full(*_):
        raise QueueFullError("64 requests wait already", 9)

    monkeypatch.setattr(prefill.engine, "submit_prefill", full)
    status, headers, _ = await post(decode, CHAT_PATH, CHAT, {"x-tandem-prefill": prefill.kv_address})
    assert (status, headers["Retry-After"]) == (429, "9")
    await eventually(decode.is_empty, "nothing is held")


async def test_a_loss_after_the_first_byte_is_an_error_event(pair, monkeypatch):
    """The pages never come to their end: the stream ends with an error object, not with a hang and not with [DONE]."""
    prefill, decode = pair
    monkeypatch.setattr(type(prefill.node.prefill), "on_done", lambda self, key: None)
    monkeypatch.setattr(decode.node.decode, "_lease_s", 0.5)
    _, lines = await events(decode, CHAT_PATH, CHAT, {"x-tandem-prefill": prefill.kv_address})
    assert "error" in json.loads(lines[-1].split("data: ", 1)[1])
    assert not any(line == "[DONE]" for line in lines)
    await eventually(decode.is_empty, "nothing is held")


async def test_a_loss_before_the_first_byte_is_503(pair, monkeypatch):
    prefill, decode = pair
    monkeypatch.setattr(type(prefill.node.prefill), "on_first", lambda self, key, token: None)
    status, headers, _ = await post(decode, CHAT_PATH, CHAT, {"x-tandem-prefill": prefill.kv_address})
    assert (status, headers["x-tandem-retry"]) == (503, "pair")
    await eventually(decode.is_empty, "nothing is held")


async def test_the_same_request_id_twice_at_once(pair):
    prefill, decode = pair
    head = {"x-tandem-prefill": prefill.kv_address, "x-tandem-request-id": "same"}
    got = await asyncio.gather(*(post(decode, CHAT_PATH, CHAT, head) for _ in range(3)))
    assert [status for status, _, _ in got] == [200] * 3
    assert len({answer["choices"][0]["message"]["content"] for _, _, answer in got}) == 1


SHAPED = {**CHAT, "temperature": 1.2, "seed": 8, "top_k": 30, "min_p": 0.01, "repetition_penalty": 1.3,
          "presence_penalty": 0.5, "frequency_penalty": 0.5, "logit_bias": {"40": -100, "50": 2}, "min_tokens": 4,
          "max_tokens": 20, "logprobs": True, "top_logprobs": 2, "stop_token_ids": [65]}  # fmt: skip


@pytest.mark.parametrize("n", [1, 3])
async def test_all_of_sampling_reaches_the_prefill_worker(pair, n):
    prefill, decode = pair
    _, _, alone = await post(prefill, CHAT_PATH, {**SHAPED, "n": n})
    status, headers, answer = await post(
        decode, CHAT_PATH, {**SHAPED, "n": n}, {"x-tandem-prefill": prefill.kv_address}
    )
    assert (status, headers["x-tandem-path"]) == (200, "disaggregated")
    for ours, theirs in zip(answer["choices"], alone["choices"], strict=True):
        assert ours["message"] == theirs["message"]
        assert [one["token"] for one in ours["logprobs"]["content"]] == [
            one["token"] for one in theirs["logprobs"]["content"]
        ]
    await eventually(lambda: decode.is_empty() and prefill.is_empty(), "both are empty")


async def test_a_forced_token_is_forced_at_the_prefill_worker_too(pair):
    prefill, decode = pair
    body = {**CHAT, "logit_bias": {"40": 100}, "logprobs": True}
    _, _, answer = await post(decode, CHAT_PATH, body, {"x-tandem-prefill": prefill.kv_address})
    assert len({one["token"] for one in answer["choices"][0]["logprobs"]["content"]}) == 1
