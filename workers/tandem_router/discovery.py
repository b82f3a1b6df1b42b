"""List and watch of the resource's worker pods: what the API server says goes into the registry, at once."""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass

import aiohttp
import msgspec

from tandem_router.access import Access
from tandem_router.pods import Pod, PodList, Status, WatchEvent, worker_of
from tandem_router.workers import Registry

PAGE_PODS = 250
LIST_S = 30.0
LONGEST_LINE = 8 * 1024 * 1024
LONGEST_LIST = 64 * 1024 * 1024
LONGEST_BACKOFF_S = 30.0
# The server ends a watch after this long and we ask again from where it ended: a connection that died silently is
# noticed this soon.
WATCH_S = 60
WATCH_GRACE_S = 15
QUIET_TURN_S = 5.0

log = logging.getLogger("tandem_router.discovery")


class ApiRefusedError(Exception):
    """The API server's refusal, in its words."""


class ExpiredError(Exception):
    """The resource version is too old (410): list again."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which pods: the workers of one resource."""

    namespace: str
    resource: str

    @property
    def path(self) -> str:
        """The collection's path."""
        return f"/api/v1/namespaces/{self.namespace}/pods"

    @property
    def labels(self) -> str:
        """The label selector."""
        return f"tandem.dev/resource={self.resource},tandem.dev/component=worker"


class Discovery:
    """Keeps a registry in step with the API server until cancelled. `synced` is true after the first whole list."""

    def __init__(
        self, session: aiohttp.ClientSession, access: Access, selection: Selection, registry: Registry
    ) -> None:
        self._session = session
        self._access = access
        self._selection = selection
        self._registry = registry
        self._version = ""
        self.synced = False

    async def run(self) -> None:
        """Follow for ever. Trouble is logged and tried again, at once, then after pauses up to 30 s.

        While the API server is away the last known workers stay: they may well serve.
        """
        loop = asyncio.get_running_loop()
        short_turns = 0
        while True:
            began = loop.time()
            await self._turn()
            short_turns = 0 if loop.time() - began > QUIET_TURN_S else short_turns + 1
            await asyncio.sleep(backoff_s(short_turns) * random.uniform(0.5, 1.0))  # noqa: S311 (jitter is no secret)

    async def _turn(self) -> None:
        try:
            if not self._version:
                await self._list()
            await self._watch()
        except ExpiredError:
            self._version = ""
            log.info("the watch's resource version expired; listing again")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            log.warning("watch of worker pods broke: %s: %s", type(error).__name__, error)
        except (ApiRefusedError, msgspec.MsgspecError) as error:
            self._version = ""
            log.warning("watch of worker pods failed: %s", error)

    async def _list(self) -> None:
        pods: list[Pod] = []
        after, version = "", ""
        while True:
            page = await self._page(after)
            pods += page.items or ()
            version = page.metadata.resourceVersion
            after = page.metadata.continue_
            if not after:
                break
        self._registry.replace(w for pod in pods if (w := worker_of(pod)) is not None)
        self._version = version
        self.synced = True
        log.info("listed %d worker pods of %s", len(pods), self._selection.resource)

    async def _page(self, after: str) -> PodList:
        query = {"labelSelector": self._selection.labels, "limit": str(PAGE_PODS)}
        if after:
            query["continue"] = after
        timeout = aiohttp.ClientTimeout(total=LIST_S, sock_connect=5)
        async with self._get(query, timeout) as response:
            await _check(response)
            body = await response.content.read(LONGEST_LIST + 1)
            while chunk := await response.content.read(LONGEST_LIST + 1 - len(body)):
                body += chunk
        if len(body) > LONGEST_LIST:
            raise ApiRefusedError(f"a list of pods is longer than {LONGEST_LIST} bytes")
        return msgspec.json.decode(body, type=PodList)

    async def _watch(self) -> None:
        query = {
            "labelSelector": self._selection.labels,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(WATCH_S),
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=WATCH_S + WATCH_GRACE_S)
        async with self._get(query, timeout) as response:
            await _check(response)
            lines = Lines()
            async for data in response.content.iter_any():
                for line in lines.feed(data):
                    self._version = apply(msgspec.json.decode(line, type=WatchEvent), self._registry) or self._version

    def _get(self, query: dict[str, str], timeout: aiohttp.ClientTimeout) -> aiohttp.client._RequestContextManager:
        return self._session.get(
            self._access.url + self._selection.path,
            params=query,
            headers=self._access.headers(),
            ssl=self._access.tls,
            timeout=timeout,
            allow_redirects=False,
        )


def apply(event: WatchEvent, registry: Registry) -> str:
    """Take one watch event in; the resource version to go on from ("": as before).

    Raises ExpiredError for 410, ApiRefusedError for any other error event.
    """
    if event.type == "ERROR":
        status = msgspec.json.decode(event.object, type=Status)
        if status.code == 410:
            raise ExpiredError
        raise ApiRefusedError(f"watch error {status.code} {status.reason}: {status.message}")
    pod = msgspec.json.decode(event.object, type=Pod)
    if event.type in {"ADDED", "MODIFIED", "DELETED"}:
        worker = worker_of(pod)
        if worker is None or event.type == "DELETED":
            registry.remove(pod.metadata.name)
        else:
            registry.put(worker)
    return pod.metadata.resourceVersion


class Lines:
    """Cuts a stream into lines, each at most 8 MiB (a pod is at most 1.5 MiB in etcd)."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now. Raises ApiRefusedError for one that is too long."""
        *complete, self._rest = (self._rest + data).split(b"\n")
        if max(map(len, (self._rest, *complete))) > LONGEST_LINE:
            raise ApiRefusedError(f"a watch event is longer than {LONGEST_LINE} bytes")
        return [line for line in complete if line.strip()]


def backoff_s(short_turns: int) -> float:
    """Pause before the next turn: none after a long or a first short one, then 0.25 s doubling to 30 s."""
    return 0.0 if short_turns < 2 else min(0.25 * 2 ** min(short_turns - 2, 10), LONGEST_BACKOFF_S)


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status == 410:
        raise ExpiredError
    if response.status == 200:
        return
    said = (await response.content.read(2048)).decode(errors="replace")
    hint = " (is the service account bound to the ClusterRole tandem-router?)" if response.status in {401, 403} else ""
    raise ApiRefusedError(f"the API server answered {response.status}{hint}: {said}")
