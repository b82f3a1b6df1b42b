"""Stand-ins for vLLM and SGLang servers that hold the router to the protocol: a wrong message is an assertion there.

They compute nothing; the answer's text proves that the pages that the decode worker needs were where it was told.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from workers.tests.router.standins import DONE, TOKENS, StandIn, chunk

ASKS_FOR_PAGES = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
PLAIN = {"id": "c1", "object": "chat.completion", "choices": [{"index": 0, "message": {}}], "usage": USAGE}


def refusal(status: int, message: str = "no") -> web.Response:
    return web.json_response({"error": {"message": message, "type": "x", "param": None, "code": status}}, status=status)


async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """A stream, or a whole answer, in OpenAI's form."""
    if not body.get("stream"):
        return web.json_response(PLAIN)
    response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    for piece in (*TOKENS, chunk(None, usage=USAGE), DONE):
        await response.write(piece)
    return response


@dataclass
class Pages:
    """What prefill workers hold for decode workers: by the parameters' remote request, each to be read once."""

    held: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def check(self, name: str, holds: object) -> None:
        if not holds:
            self.problems.append(name)


Hook = Callable[[dict[str, Any]], Awaitable[web.Response | None]]


async def no_hook(body: dict[str, Any]) -> web.Response | None:
    return None


class VllmStandIn(StandIn):
    """`vllm serve` with kv_both: prefills for others, reads others' pages, or does the whole job."""

    def __init__(self, name: str, pages: Pages, hook: Hook = no_hook) -> None:
        super().__init__(name, self.serve)
        self.pages, self.hook = pages, hook
        self.computed = 0  # prompts that it prefilled itself

    async def serve(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        if (said := await self.hook(body)) is not None:
            return said
        self.pages.check("both workers know the request by one id", request.headers.get("X-Request-Id"))
        params = body.get("kv_transfer_params")
        if params is None:
            self.computed += 1
            return await answer(request, body)
        if params.get("do_remote_decode"):
            return self.prefill(body, params)
        return await self.decode(request, body, params)

    def prefill(self, body: dict[str, Any], params: dict[str, Any]) -> web.Response:
        check = self.pages.check
        check("a prefill names no remote side", params == ASKS_FOR_PAGES)
        check("a prefill is for one token", body["max_tokens"] == 1 and body.get("max_completion_tokens", 1) == 1)
        check("a prefill is not streamed", body["stream"] is False and "stream_options" not in body)
        check("a prefill has no least length", "min_tokens" not in body)
        self.computed += 1
        ticket = secrets.token_hex(8)
        self.pages.held[ticket] = json.dumps(body["messages"])
        found = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": self.name,
            "remote_block_ids": [[1, 2, 3]],
            "remote_request_id": ticket,
            "remote_host": "10.0.0.9",
            "remote_port": 5600,
            "tp_size": 1,
        }
        return web.json_response({**PLAIN, "kv_transfer_params": found})

    async def decode(self, request: web.Request, body: dict[str, Any], params: dict[str, Any]) -> web.StreamResponse:
        prompt = self.pages.held.pop(params["remote_request_id"], None)
        self.pages.check(
            "a decode reads pages that are held for its own prompt", prompt == json.dumps(body["messages"])
        )
        self.pages.check("the parameters come as they were given", params["remote_block_ids"] == [[1, 2, 3]])
        self.pages.check("a decode has the client's own length", body.get("max_tokens") == 20)
        return await answer(request, body)


@dataclass
class Rooms:
    """The bootstrap: both sides of a room must come, with the same body."""

    bodies: dict[int, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    met: dict[int, asyncio.Event] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    async def enter(self, mode: str, body: dict[str, Any]) -> None:
        room = body["bootstrap_room"]
        if not isinstance(room, int) or not 0 <= room < 2**63:
            self.problems.append(f"room {room}")
        event = self.met.setdefault(room, asyncio.Event())
        if room in self.bodies:
            other, seen = self.bodies[room]
            if other == mode or seen != body:
                self.problems.append(f"{mode} and {other} differ in room {room}")
            event.set()
        else:
            self.bodies[room] = (mode, body)
        await event.wait()


class SglangStandIn(StandIn):
    """`sglang.launch_server --disaggregation-mode prefill|decode`: answers when its counterpart is there."""

    def __init__(self, name: str, mode: str, rooms: Rooms, hook: Hook = no_hook) -> None:
        super().__init__(name, self.serve)
        self.mode, self.rooms, self.hook = mode, rooms, hook

    async def serve(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        if (said := await self.hook(body)) is not None:
            return said
        await self.rooms.enter(self.mode, body)
        return await answer(request, body)
