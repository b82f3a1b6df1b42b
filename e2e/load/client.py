"""One streaming request, read as cheaply as its figures allow: most chunks are only asked whether they have content."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aiohttp

from e2e.load.result import Result, Status

LONGEST_ERROR = 4096
LONGEST_EVENT = 1024 * 1024
EMPTY = ('"content":""', '"content": ""')


class BrokenOffError(Exception):
    """The stream ended without its end."""


class Client:
    """Sends requests over kept connections; `clock` gives seconds since the load began."""

    def __init__(self, session: aiohttp.ClientSession, url: str, timeout_s: float, clock: Callable[[], float]) -> None:
        self._session = session
        self._url = url
        self._timeout_s = timeout_s
        self._clock = clock

    async def send(self, body: dict[str, Any], result: Result) -> None:
        """Fill in the result; whatever goes wrong is written there. A cancelled request stays `unfinished`."""
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        result.sent_s = self._clock()
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._session.post(self._url + path, json=body, allow_redirects=False) as response,
            ):
                await self._read(response, result)
            result.status = Status.OK
        except TimeoutError:
            _failed(result, f"not finished within {self._timeout_s:g} s")
        except (aiohttp.ClientError, OSError, BrokenOffError) as error:
            _failed(result, f"{type(error).__name__}: {error}")

    async def _read(self, response: aiohttp.ClientResponse, result: Result) -> None:
        result.code = response.status
        result.path = response.headers.get("x-tandem-path", "")
        result.worker = response.headers.get("x-tandem-worker", "")
        result.prefill_worker = response.headers.get("x-tandem-prefill-worker", "")
        if response.status != 200:
            text = (await response.content.read(LONGEST_ERROR)).decode(errors="replace")
            raise BrokenOffError(f"{response.status}: {text}")
        rest = b""
        async for data in response.content.iter_any():
            now = self._clock()
            *events, rest = (rest + data).split(b"\n\n")
            if len(rest) > LONGEST_EVENT:
                raise BrokenOffError(f"an event is longer than {LONGEST_EVENT} bytes")
            for event in events:
                if event == b"data: [DONE]":
                    return
                _take(event.decode(errors="replace"), now, result)
        raise BrokenOffError("the stream ended without [DONE]")


def new_session() -> aiohttp.ClientSession:
    """As many connections as requests are open; no proxies, no cookies."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
    )


def _take(event: str, now: float, result: Result) -> None:
    """Learn from one event. Raises BrokenOffError for an error event."""
    if event.startswith(('data: {"error"', "event: error")):
        raise BrokenOffError(event[:LONGEST_ERROR])
    if '"usage":{' in event or '"usage": {' in event:
        _use(json.loads(event.removeprefix("data: ")), result)
    if '"choices":[{' not in event and '"choices": [{' not in event:
        return
    if result.first_s is None:
        if _only_a_role(event):
            return
        result.first_s = now
    result.last_s = now


def _only_a_role(event: str) -> bool:
    return '"role"' in event and (any(mark in event for mark in EMPTY) or '"content"' not in event)


def _use(chunk: dict[str, Any], result: Result) -> None:
    usage = chunk["usage"]
    tandem = usage.get("tandem") or {}
    result.prompt_tokens = usage.get("prompt_tokens")
    result.output_tokens = usage.get("completion_tokens")
    result.cached_tokens = tandem.get("cached_tokens")
    result.kv_bytes = tandem.get("kv_bytes")
    result.worker = result.worker or tandem.get("decode_worker", "")
    result.prefill_worker = result.prefill_worker or tandem.get("prefill_worker", "")


def _failed(result: Result, why: str) -> None:
    result.status = Status.FAILED
    result.error = why
