"""Follows the KV events of every worker that serves: one connection each, taken up again where it broke off."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

import aiohttp
import msgspec

from tandem_router.discovery import ApiRefusedError, Lines, backoff_s
from tandem_router.mail import CONNECT_S
from tandem_router.overlap import Overlap
from tandem_router.worker import Worker

SILENCE_S = 30.0  # a worker says something every 10 s
LONG_S = 30.0  # between tries with a worker that has no such stream

log = logging.getLogger("tandem_router.followers")


class _Event(msgspec.Struct):
    type: str
    page: str
    blocks: list[tuple[str, int]] = []


_EVENTS = msgspec.json.Decoder(list[_Event])


class Followers:
    """A task a worker. `sync` it with the registry; `close` it at the end."""

    def __init__(self, session: aiohttp.ClientSession, overlap: Overlap) -> None:
        self._session = session
        self._overlap = overlap
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}

    def sync(self, workers: Iterable[Worker]) -> None:
        """These are the workers now: follow the new ones, forget those that are gone."""
        wanted = {(worker.name, worker.address) for worker in workers if worker.can_serve}
        for gone in self._tasks.keys() - wanted:
            self._tasks.pop(gone).cancel()
            self._overlap.forget(gone[0])
        for name, address in wanted - self._tasks.keys():
            follower = Follower(self._session, self._overlap, name, address)
            self._tasks[name, address] = asyncio.create_task(follower.run(), name=f"kv events of {name}")

    async def close(self) -> None:
        """Follow nobody any more."""
        tasks = list(self._tasks.values())
        self.sync(())
        await asyncio.gather(*tasks, return_exceptions=True)


class Follower:
    """One worker's stream."""

    def __init__(self, session: aiohttp.ClientSession, overlap: Overlap, name: str, address: str) -> None:
        self._session = session
        self._overlap = overlap
        self._name = name
        self._url = f"http://{address}/kv_events"
        self._last_id = ""

    async def run(self) -> None:
        """For ever: after trouble again from where it was, after pauses up to 30 s. What was told stays known."""
        failures = 0
        while True:
            before = self._last_id
            try:
                await self._follow()
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                log.info("KV events of %s broke off: %s: %s", self._name, type(error).__name__, error)
            except (ApiRefusedError, msgspec.MsgspecError, UnicodeDecodeError) as error:
                log.warning("KV events of %s: %s", self._name, error)
                self._last_id = ""  # all of it again: what was in between is not known
            failures = 0 if self._last_id != before else failures + 1
            await asyncio.sleep(min(backoff_s(failures + 1), LONG_S))

    async def _follow(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENCE_S)
        headers = {"Last-Event-ID": self._last_id} if self._last_id else {}
        async with self._session.get(self._url, headers=headers, timeout=timeout, allow_redirects=False) as response:
            if response.status != 200:
                raise ApiRefusedError(f"{self._url} answered {response.status}")
            lines = Lines()
            async for data in response.content.iter_any():
                for line in lines.feed(data):
                    self._hear(line)

    def _hear(self, line: bytes) -> None:
        name, _, value = line.partition(b": ")
        if name == b"event" and value == b"snapshot":
            self._overlap.forget(self._name)
        elif name == b"id":
            self._last_id = value.decode("ascii")[:64]
        elif name == b"data":
            for event in _EVENTS.decode(value):
                if event.type == "stored":
                    self._overlap.stored(self._name, event.page, event.blocks)
                elif event.type == "removed":
                    self._overlap.removed(self._name, event.page)
