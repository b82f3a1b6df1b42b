"""The API server as the operator's bench sees it: a bare client of plain bytes, and the server's own counts."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import ssl
from collections import Counter
from typing import TYPE_CHECKING, Any, Self

import aiohttp
import yaml

from tandem_operator.edges.kinds import KINDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
    from pathlib import Path

Object = dict[str, Any]
APPLY, MERGE = "application/apply-patch+yaml", "application/merge-patch+json"
CONNECTIONS = 8
DEADLINE = aiohttp.ClientTimeout(total=30)
ENDLESS = aiohttp.ClientTimeout(total=None, sock_read=1800)  # longer than the bench leaves the cluster in peace
LINE = 8 * 1024 * 1024  # one watch event at most
COUNTED = re.compile(r"^apiserver_request_total\{(.*)\} (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')
WRITES = frozenset({"POST", "PUT", "PATCH", "APPLY", "DELETE"})


class RefusedError(RuntimeError):
    """The API server did not do as asked."""


class Api:
    """A few verbs, nothing looked up, nothing rendered: what is left is the API server's own time."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def ask(self, verb: str, path: str, body: Object | bytes | None = None, content: str = "") -> Any:
        """One request; raise RefusedError with the server's words unless it is done."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        headers = {"Content-Type": content or "application/json"}
        async with self._session.request(verb, path, data=data, headers=headers, timeout=DEADLINE) as answer:
            text = await answer.text()
            if answer.status >= 300:
                raise RefusedError(f"{verb} {path}: {answer.status} {text[:300]}")
            return json.loads(text) if text.startswith("{") else text

    async def watch(self, kind: str, namespace: str | None, selector: str = "") -> AsyncIterator[Object]:
        """All objects of a kind as ADDED events, then what changes, for ever; a stream that ends is an error."""
        path = KINDS[kind].path(namespace)
        query = {"watch": "1", "allowWatchBookmarks": "false", "labelSelector": selector}
        async with self._session.get(path, params=query, timeout=ENDLESS) as answer:
            async for line in answer.content:
                yield json.loads(line)
        raise RefusedError(f"the watch of {kind} ended")

    async def writes(self) -> Counter[str]:
        """Writes that the server counted, by `VERB resource/subresource`."""
        found: Counter[str] = Counter()
        for labels, number in COUNTED.findall(await self.ask("GET", "/metrics")):
            seen = dict(LABEL.findall(labels))
            if seen.get("verb") in WRITES and seen.get("code", "").startswith("2"):
                found[f"{seen['resource']}/{seen['subresource']}".rstrip("/")] += int(float(number))
        return found


def connect(kubeconfig: Path) -> Api:
    """A client of the kubeconfig's one cluster and token."""
    config = yaml.safe_load(kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    trusted = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    session = aiohttp.ClientSession(
        cluster["server"],
        headers={"Authorization": f"Bearer {user['token']}"},
        connector=aiohttp.TCPConnector(ssl=trusted, limit=0),
        read_bufsize=LINE,
    )
    return Api(session)


async def side_by_side(jobs: Iterable[Callable[[], Coroutine[Any, Any, Any]]], width: int = CONNECTIONS) -> None:
    """Run all jobs, so many at a time."""
    waiting = iter(jobs)

    async def one() -> None:
        for job in waiting:
            await job()

    async with asyncio.TaskGroup() as group:
        for _ in range(width):
            group.create_task(one())
