"""List and watch against something that speaks as the API server does, and the whole process on top of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp
import pytest

from tandem_router import discovery, main
from tandem_router.access import Access
from tandem_router.discovery import Discovery, Selection
from tandem_router.proxy import Patience
from tandem_router.slo import Targets
from tandem_router.workers import Registry
from workers.tests.router.standins import TOKENS, Api, StandIn, cancelled, pod, refusing_address, streams, until

SELECTION = Selection("ns", "chat")


class Followed:
    """A registry that follows."""

    def __init__(self) -> None:
        self.registry = Registry()

    def roles(self) -> dict[str, str]:
        return {w.name: w.role.value for w in self.registry.workers}


@contextlib.asynccontextmanager
async def following(api: Api) -> AsyncIterator[Followed]:
    followed = Followed()
    async with aiohttp.ClientSession() as session:
        found = Discovery(session, Access(api.url, True, "secret"), SELECTION, followed.registry)
        task = asyncio.create_task(found.run())
        yield followed
        await cancelled(task)


async def test_list_then_watch(api: Api):
    api.pods = [pod("a", "prefill"), pod("b")]
    async with following(api) as seen:
        await asyncio.wait_for(api.watching.wait(), 5)
        assert seen.roles() == {"a": "prefill", "b": "decode"}
        assert api.watches[0]["resourceVersion"] == "10"
        assert api.watches[0]["allowWatchBookmarks"] == "true"
        assert set(api.tokens) == {"Bearer secret"}
        api.say("MODIFIED", pod("a", "decode", version="11"))
        await until(lambda: seen.roles() == {"a": "decode", "b": "decode"})
        api.say("DELETED", pod("b", version="12"))
        api.say("ADDED", pod("c", "both", version="13"))
        await until(lambda: seen.roles() == {"a": "decode", "c": "both"})


async def test_a_list_comes_in_pages(api: Api):
    api.page = 2
    api.pods = [pod(f"w{i}") for i in range(5)]
    async with following(api) as seen:
        await until(lambda: len(seen.roles()) == 5)
    assert [query.get("continue") for query in api.lists] == [None, "2", "4"]


@pytest.mark.parametrize("end", [None, "die"], ids=["ended by the server", "broken"])
async def test_a_watch_goes_on_from_where_it_was(api: Api, end):
    api.pods = [pod("a")]
    async with following(api) as seen:
        api.say("BOOKMARK", {"metadata": {"resourceVersion": "77"}})
        api.events.put_nowait(end)
        api.say("ADDED", pod("b", version="78"))
        await until(lambda: len(seen.roles()) == 2)
    assert [w["resourceVersion"] for w in api.watches] == ["10", "77"]
    assert len(api.lists) == 1


async def test_an_expired_watch_lists_again(api: Api):
    api.pods = [pod("a"), pod("b")]
    async with following(api) as seen:
        await asyncio.wait_for(api.watching.wait(), 5)
        api.pods, api.version = [pod("b", "prefill")], "500"
        api.say("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})
        await until(lambda: seen.roles() == {"b": "prefill"})
        await until(lambda: len(api.watches) == 2)
    assert api.watches[1]["resourceVersion"] == "500"


@pytest.mark.parametrize("status", [410, 403, 500])
async def test_refusals_are_tried_again(api: Api, status):
    api.pods = [pod("a")]
    api.refuse = [status, status]
    async with following(api) as seen:
        await until(lambda: seen.roles() == {"a": "decode"})
    assert api.refuse == []


async def test_known_workers_stay_while_the_api_server_is_away(api: Api):
    api.pods = [pod("a")]
    async with following(api) as seen:
        await asyncio.wait_for(api.watching.wait(), 5)
        api.refuse = [500] * 3
        api.events.put_nowait("die")
        await until(lambda: len(api.refuse) < 3)
        assert seen.roles() == {"a": "decode"}


async def test_a_silent_watch_is_given_up(api: Api, monkeypatch):
    monkeypatch.setattr(discovery, "WATCH_S", 0)
    monkeypatch.setattr(discovery, "WATCH_GRACE_S", 0.05)
    async with following(api):
        await until(lambda: len(api.watches) >= 2)


async def test_lines_are_capped(api: Api, monkeypatch):
    monkeypatch.setattr(discovery, "LONGEST_LINE", 1000)
    async with following(api) as seen:
        await asyncio.wait_for(api.watching.wait(), 5)
        api.pods = [pod("a")]
        api.say("ADDED", {**pod("b"), "junk": "x" * 2000})
        await until(lambda: seen.roles() == {"a": "decode"})  # refused, listed again


def settings(port: int) -> main.Settings:
    return main.Settings(SELECTION, "127.0.0.1", port, Targets(0.5, 0.04), Patience())


async def test_the_whole_process_from_list_to_drain(api: Api):
    """A worker by watch, a request in flight while draining: readiness fails first, the request still ends well."""
    gate = asyncio.Event()
    worker = StandIn("w0")
    await worker.start()

    async def gated(request):
        await gate.wait()
        return await streams(*TOKENS, b"data: [DONE]\n\n")(request)

    worker.behaviour = gated
    host, port = worker.address.split(":")
    thing = pod("w0", ip=host)
    thing["spec"]["containers"][0]["ports"][0]["containerPort"] = int(port)
    url = refusing_address()
    stop = asyncio.Event()
    serving = asyncio.create_task(
        main.serve(settings(int(url.split(":")[1])), Access(api.url, True), stop=stop, lame_duck_s=0.0)
    )
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as client:

        async def ready() -> int:
            try:
                async with client.get(f"http://{url}/ready") as response:
                    return response.status
            except aiohttp.ClientConnectorError:
                return 0

        async def wait_ready(status: int) -> None:
            async with asyncio.timeout(10):
                while await ready() != status:  # noqa: ASYNC110 - another process would look like this
                    await asyncio.sleep(0.01)

        await wait_ready(503)
        api.say("ADDED", thing)
        await wait_ready(200)
        asking = asyncio.create_task(client.post(f"http://{url}/v1/completions", json={"stream": True}))
        await until(lambda: worker.seen)
        stop.set()
        await wait_ready(503)
        gate.set()
        async with await asking as response:
            assert (await response.read()).endswith(b"data: [DONE]\n\n")
            assert response.headers["Connection"] == "close"
        await asyncio.wait_for(serving, 10)
        assert await ready() == 0
    assert worker.runner
    await worker.runner.cleanup()


async def test_a_fault_of_the_watch_ends_the_process(api: Api, monkeypatch):
    async def broken(self: Discovery) -> None:
        raise RuntimeError("a fault in our own code")

    monkeypatch.setattr(Discovery, "run", broken)
    with pytest.raises(RuntimeError, match="our own code"):
        await asyncio.wait_for(
            main.serve(settings(0), Access(api.url, True), stop=asyncio.Event(), lame_duck_s=0.0), 10
        )
