"""GET /kv_events on a real worker: live, replayed from a number, whole after another process' number; both roles."""

import asyncio
import json

import aiohttp
import msgspec
import pytest

from tandem_worker.engine.events import KvEvents, origin_of
from tandem_worker.server.stream import AT_ONCE, place, written
from workers.tests.server.test_api import CHAT_PATH, PLAIN_PATH, post

PROMPT = "A train of thought. " * 20  # 402 bytes as JSON: one block; 400 tokens of the byte tokenizer


async def read(worker, count, last_id=""):
    """The first `count` messages that hold anything: (event, id, data)."""
    headers = {"Last-Event-ID": last_id} if last_id else {}
    async with aiohttp.ClientSession() as session, session.get(worker.url + "/kv_events", headers=headers) as got:
        assert got.status == 200
        messages = []
        async with asyncio.timeout(60):
            while len(messages) < count:
                text = (await got.content.readuntil(b"\n\n")).decode()
                fields = dict(line.split(": ", 1) for line in text.strip().split("\n"))
                if "data" in fields:
                    messages.append((fields.get("event", ""), fields.get("id", ""), json.loads(fields["data"])))
        return messages


@pytest.mark.parametrize("which", ["alone", "pair"])
async def test_a_reader_learns_which_bytes_are_cached(pair, which):
    prefill, decode = pair
    headers = {"x-tandem-prefill": prefill.kv_address} if which == "pair" else {}
    reading = [asyncio.create_task(read(one, 2)) for one in (prefill, decode)]
    await asyncio.sleep(0)
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 2, "temperature": 0, "ignore_eos": True}
    status, _, answer = await post(decode, PLAIN_PATH, body, headers)
    assert status == 200, answer
    block = origin_of(json.dumps(PROMPT).encode()).blocks[:8].hex()
    for worker, task in zip(pair, reading, strict=True):
        if which == "alone" and worker is prefill:
            task.cancel()
            continue
        await task
        kind, last_id, data = (await read(worker, 1))[0]
        assert kind == "snapshot"
        blocks = dict(pair for one in data for pair in one["blocks"])
        assert blocks == {block: 255}, "the block ends at byte 256 of 402, the prompt has 400 tokens"
        assert len(data) >= 100
        assert not worker.engine.events.since(*place(last_id)).events


async def test_a_reader_that_was_away_goes_on_where_it_was(worker):
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "y" * 300}], "max_tokens": 1}
    await post(worker, CHAT_PATH, chat)
    (_, seen, _), *_ = await read(worker, 1)
    await post(worker, CHAT_PATH, {**chat, "messages": [{"role": "user", "content": "z" * 300}]})
    kind, _, data = (await read(worker, 1, seen))[0]
    assert kind == ""
    assert {one["type"] for one in data} == {"stored"}
    assert (await read(worker, 1, f"0123:{seen.split(':')[1]}"))[0][0] == "snapshot", "another process' number"


def test_messages_are_bounded_and_only_a_whole_snapshot_has_a_number():
    events = KvEvents(4)
    pages = [bytes([at // 256, at % 256]) for at in range(2 * AT_ONCE + 1)]
    events.stored(pages, set(pages), origin_of(b""), 0)
    for news, numbers in ((events.since("", 0), [len(pages)]), (events.since(events.epoch, 0), [256, 512, 513])):
        messages = written(news, events.epoch).decode().split("\n\n")[:-1]
        data = [msgspec.json.decode(one.split("data: ")[1]) for one in messages]
        assert [len(one) for one in data] == [AT_ONCE, AT_ONCE, 1]
        ids = [int(line.rsplit(":", 1)[1]) for one in messages for line in one.split("\n") if line.startswith("id")]
        assert ids == numbers
