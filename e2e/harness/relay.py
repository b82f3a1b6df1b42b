"""Between an operator and the API server: all goes through as it is, but events of watches come in a way of their own.

`python -m e2e.harness.relay WAY PORT`, with KUBECONFIG. It prints a line for each event that does not just go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
import subprocess
import sys
import tempfile
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import yaml
from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, TCPConnector, web

from e2e.harness.kube import REPO
from e2e.harness.ports import free_port
from e2e.harness.waiting import until
from e2e.harness.world import listens

HELD_S = 0.5  # so long events are gathered before they go on
KEPT = 500  # events of one watch that are told again
PASSED_ON = ("Authorization", "Accept", "Content-Type")
MAX_BODY = 16 << 20
Events = list[bytes]  # each the line that the API server sent


def never(_new: Events, _before: Events) -> Events:
    """Nothing is told."""
    return []


def without_deletions(new: Events, _before: Events) -> Events:
    """What goes is not told."""
    return [line for line in new if json.loads(line)["type"] != "DELETED"]


def and_what_was_before(new: Events, before: Events) -> Events:
    """Each time all is told once more as it was."""
    return new + before


def twice_and_backwards(new: Events, before: Events) -> Events:
    """Each time all that ever happened, and once more with the newest first and the oldest last."""
    return [*before, *new, *reversed(before + new)]


def in_order(new: Events, _before: Events) -> Events:
    """As they come."""
    return new


EVENTS: dict[str, Callable[[Events, Events], Events]] = {
    way.__name__: way for way in (never, without_deletions, and_what_was_before, twice_and_backwards)
}
OLD_LISTS = "lists_of_before"  # events as they come, and every second list as it was the time before
WAYS = (*EVENTS, OLD_LISTS)


class Relay:
    """One API server, one way of its events."""

    def __init__(self, session: ClientSession, server: str, way: str) -> None:
        self._session = session
        self._server = server
        self._way = way
        self._of = EVENTS.get(way, in_order)
        self._lists: dict[str, list[bytes]] = {}  # answers to each question, from the first on

    async def pass_on(self, request: web.Request) -> web.StreamResponse:
        """One request to the API server, and its answer."""
        headers = {name: request.headers[name] for name in PASSED_ON if name in request.headers}
        body = await request.read()
        url = self._server + request.path_qs
        async with self._session.request(request.method, url, headers=headers, data=body or None) as answer:
            if "watch" in request.query and answer.status == 200:
                return await self._watched(request, answer)
            read = await answer.read()
            if request.method == "GET" and self._way == OLD_LISTS and answer.status == 200:
                read = self._as_before(request, read)
            return web.Response(status=answer.status, body=read, headers=type_of(answer))

    def _as_before(self, request: web.Request, new: bytes) -> bytes:
        """A list, every second time as it was when it was last asked for."""
        if "limit" not in request.query:
            return new
        known = self._lists.setdefault(str(request.rel_url) + request.headers.get("Accept", ""), [])
        known.append(new)
        if len(known) % 2 or known[-2] == new:
            return new
        sys.stdout.write(f"{self._way}: {request.path}\n")
        return known[-2]

    async def _watched(self, request: web.Request, answer: ClientResponse) -> web.StreamResponse:
        """A watch's events, until either side ends it."""
        stream = web.StreamResponse(headers=type_of(answer))
        await stream.prepare(request)
        before: Events = []
        async for new in gathered(answer):
            told = self._of(new, before)
            if told != new:
                sys.stdout.writelines(f"{self._way}: {request.path} {json.loads(line)['type']}\n" for line in new)
            before = (before + new)[-KEPT:]
            await stream.write(b"".join(told))
        return stream


def type_of(answer: ClientResponse) -> dict[str, str]:
    """What its body is."""
    return {"Content-Type": answer.headers.get("Content-Type", "application/json")}


async def gathered(answer: ClientResponse) -> AsyncIterator[Events]:
    """Lines as they come, those of half a second together."""
    lines: asyncio.Queue[bytes] = asyncio.Queue()
    reading = asyncio.create_task(read_into(lines, answer))
    while line := await lines.get():
        await asyncio.sleep(HELD_S)
        rest = [lines.get_nowait() for _ in range(lines.qsize())]
        yield [part for part in (line, *rest) if part]
        if b"" in rest:
            break
    await reading


async def read_into(lines: asyncio.Queue[bytes], answer: ClientResponse) -> None:
    """The last one is empty."""
    with contextlib.suppress(ConnectionError, ClientError):
        while line := await answer.content.readuntil(b"\n"):
            lines.put_nowait(line)
    lines.put_nowait(b"")


async def serve(cluster: dict[str, str], way: str, port: int) -> None:
    """For ever, on the loopback address; `cluster` as in a kubeconfig."""
    trusted = ssl.create_default_context(cadata=b64decode(cluster["certificate-authority-data"]).decode())
    # A watch has no deadline of ours: the API server ends it.
    asking = ClientSession(
        connector=TCPConnector(ssl=trusted, limit=0), timeout=ClientTimeout(total=None), read_bufsize=MAX_BODY
    )
    async with asking as session:
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_route("*", "/{path:.*}", Relay(session, cluster["server"], way).pass_on)
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await asyncio.Event().wait()


@contextlib.contextmanager
def relayed(settings: dict[str, str], way: str, log: Path) -> Iterator[dict[str, str]]:
    """An operator's settings by which it reaches the API server through a relay, which ends with the body."""
    port = free_port()
    command = [sys.executable, "-u", "-m", "e2e.harness.relay", way, str(port)]
    with log.open("ab") as said:
        process = subprocess.Popen(command, cwd=REPO, env=settings, stdout=said, stderr=said)
    account = yaml.safe_load(Path(settings["KUBECONFIG"]).read_text())
    account["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{port}"}
    try:
        until("the relay listens", lambda: listens(port), 30)
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as own:
            yaml.safe_dump(account, own)
            own.flush()
            yield {**settings, "KUBECONFIG": own.name}
    finally:
        process.kill()
        process.wait(10)


if __name__ == "__main__":
    of_user = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    asyncio.run(serve(of_user["clusters"][0]["cluster"], sys.argv[1], int(sys.argv[2])))
