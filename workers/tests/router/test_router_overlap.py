"""Prefixes by bytes: router and worker cut prompts alike, and a router that follows real workers knows their caches."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from tandem_router import overlap
from tandem_router.asked import read_asked
from tandem_router.followers import Followers
from tandem_router.main import start
from tandem_router.overlap import Overlap, prompt_blocks
from tandem_router.worker import Role, Worker
from tandem_worker.engine import events
from tandem_worker.server.asked import prompt_origin
from workers.tests.router.standins import World, until
from workers.tests.transfer.kit import running, write_model

TOKENS = 1000


@given(st.binary(max_size=2000), st.binary(max_size=20))
def test_router_and_worker_cut_prompts_alike(content, salt):
    origin = events.origin_of(content, salt)
    assert "".join(prompt_blocks(content, salt)) == origin.blocks.hex()


def test_router_and_worker_have_the_same_sizes():
    for name in ("BLOCK_BYTES", "MAX_BLOCKS", "HASH_BYTES"):
        assert getattr(overlap, name) == getattr(events, name)


@pytest.mark.parametrize(
    "body",
    [
        {"model": "m", "messages": [{"role": "user", "content": "é" * 500}], "stream": True},
        {"model": "m", "messages": [{"role": "user", "content": "x" * 500}], "tools": [{"type": "function"}]},
        {"model": "m", "prompt": "y" * 600},
        {"model": "m", "prompt": [7] * 600, "kv_transfer_params": {}},
        {"model": "m"},
    ],
)
def test_what_the_router_reads_is_what_the_worker_gets(body):
    asked = read_asked(json.dumps(body, indent=1).encode())
    assert "".join(asked.blocks) == prompt_origin(asked.body).blocks.hex()
    assert bool(asked.blocks) == (len(body) > 1)


@pytest.mark.parametrize(
    ("told", "asked", "expected"),
    [
        pytest.param([("stored", "p1", [("a", 10), ("b", 20)])], "abc", 20, id="the leading part"),
        pytest.param([("stored", "p1", [("a", 10)]), ("stored", "p2", [("c", 30)])], "abc", 10, id="a gap ends it"),
        pytest.param([("stored", "p1", [("b", 20)])], "abc", None, id="not from the beginning"),
        pytest.param(
            [("stored", "p1", [("a", 10)]), ("stored", "p1", [("b", 20)]), ("removed", "p1", [])],
            "ab", None, id="removed, with all that was said of it",
        ),
        pytest.param([("removed", "p9", [])], "ab", None, id="removed and never stored"),
    ],
)  # fmt: skip
def test_overlap(told, asked, expected):
    known = Overlap()
    for kind, page, blocks in told:
        known.stored("d0", page, blocks) if kind == "stored" else known.removed("d0", page)
    assert known.cached(asked) == ({} if expected is None else {"d0": expected})
    known.forget("d0")
    assert known.cached(asked) == {}


async def test_the_same_prompt_goes_to_the_worker_that_has_it(world: World):
    """Placement weighs it against load: three requests outstanding are more than a whole prompt is worth."""
    for name in ("d0", "d1", "d2"):
        await world.worker(name)
    prompt = {"messages": [{"role": "user", "content": "z" * 4000}]}
    blocks = read_asked(json.dumps({"model": "m", "stream": True, **prompt}).encode()).blocks
    world.overlap.stored("d1", "page", [(block, 256 * (at + 1) // 4) for at, block in enumerate(blocks)])
    for _ in range(4):
        await world.stream(**prompt)
    assert [len(world.workers[name].seen) for name in ("d0", "d1", "d2")] == [0, 4, 0]
    world.registry.load("d1").requests += 3
    await world.stream(**prompt)
    assert len(world.workers["d1"].seen) == 4
    world.registry.load("d1").requests -= 3


async def test_a_router_that_follows_workers_knows_their_caches(tmp_path):
    known = Overlap()
    prompt = "A long story about trains, and more. " * 12
    body = json.dumps({"model": "tiny", "prompt": prompt, "max_tokens": 2, "ignore_eos": True}).encode()
    async with aiohttp.ClientSession() as session, running(write_model(tmp_path), "d0") as worker:
        followers = Followers(session, known)
        address = worker.url.removeprefix("http://")
        followers.sync([Worker("d0", address, "", Role.DECODE, ready=True)])
        async with session.post(worker.url + "/v1/completions", data=body) as answer:
            assert answer.status == 200
        await until(lambda: known.cached(read_asked(body).blocks), 60)
        assert known.cached(read_asked(body).blocks)["d0"] == pytest.approx(256 * 444 / 446, abs=2)
        followers.sync([])
        assert known.cached(read_asked(body).blocks) == {}
        await followers.close()


async def test_a_follower_goes_on_where_it_was_and_asks_for_everything_after_nonsense():
    """Three connections: a snapshot, a replay that breaks, and all of it again."""
    asked: list[str] = []
    said = [
        b'event: snapshot\nid: e:1\ndata: [{"type":"stored","page":"p","blocks":[["a",1]]}]\n\n',
        b'id: e:2\ndata: [{"type":"stored","page":"q","blocks":[["b",2]]}]\n\ndata: {nonsense\n\n',
        b'event: snapshot\nid: e:9\ndata: [{"type":"stored","page":"r","blocks":[["a",1],["b",2],["c",3]]}]\n\n',
    ]

    async def serve(request: web.Request) -> web.StreamResponse:
        asked.append(request.headers.get("Last-Event-ID", ""))
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(said[len(asked) - 1])
        if len(asked) == len(said):
            await asyncio.Event().wait()
        return response

    app = web.Application()
    app.router.add_get("/kv_events", serve)
    runner = await start(app, "127.0.0.1", 0)
    known = Overlap()
    async with aiohttp.ClientSession() as session:
        followers = Followers(session, known)
        followers.sync([Worker("w", "{}:{}".format(*runner.addresses[0][:2]), "", Role.BOTH, ready=True)])
        await until(lambda: known.cached("abc") == {"w": 3})
        assert asked == ["", "e:1", ""]
        await followers.close()
    await runner.cleanup()
