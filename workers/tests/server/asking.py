"""Requests to a worker's API, whole and streamed."""

import json

import aiohttp

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Say something about trains."}], "temperature": 0,
        "ignore_eos": True, "max_tokens": 8}  # fmt: skip
PLAIN = {"model": "tiny", "prompt": "Trains are", "temperature": 0, "ignore_eos": True, "max_tokens": 8}
CHAT_PATH, PLAIN_PATH = "/v1/chat/completions", "/v1/completions"


async def post(worker, path, body, headers=None):
    """(status, headers, JSON body)."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with aiohttp.ClientSession() as session, session.post(worker.url + path, data=data, headers=headers) as got:
        return got.status, got.headers, json.loads(await got.read())


async def events(worker, path, body, headers=None):
    """(headers, the stream's data as text)."""
    data = json.dumps({**body, "stream": True})
    async with aiohttp.ClientSession() as session, session.post(worker.url + path, data=data, headers=headers) as got:
        assert got.status == 200, await got.text()
        text = await got.text()
    return got.headers, [line.removeprefix("data: ") for line in text.split("\n\n") if line]
