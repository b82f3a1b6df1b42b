"""From a request to the first byte of an answer: up to three pairs of workers, each tried once."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

import aiohttp

from tandem_router.asked import Asked
from tandem_router.engines.base import BrokenStreamError, Engine, Verdict
from tandem_router.errors import RefusedError
from tandem_router.metrics import Metrics
from tandem_router.overlap import Overlap
from tandem_router.placement import Ask, Nowhere, Pair, Tried, culprits
from tandem_router.workers import Registry, Share

TRIES = 3
CONNECT_S = 2.0
WORKER_WAIT_S = 5.0  # as long as a flip or a restart may leave a role without a worker
LONGEST_ANSWER = 32 * 1024 * 1024

log = logging.getLogger("tandem_router.attempts")


class Bell:
    """Rings when the registry changed; whoever waits looks again."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        """Wake all who wait now."""
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        """Until the next ring, or `seconds`."""
        try:
            await asyncio.wait_for(self._event.wait(), seconds)
        except TimeoutError:
            return


@dataclass(slots=True)
class Answer:
    """A worker's answer: its first bytes when `streamed`, else the whole body. Closing it gives the load back."""

    response: aiohttp.ClientResponse
    share: Share
    body: bytes
    streamed: bool

    async def read(self) -> bytes:
        """More of a stream, as it comes; empty at its end. Raises BrokenStreamError."""
        try:
            return await self.response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise BrokenStreamError(f"the worker broke off: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Done with it. A connection that was not read to its end is closed, which tells the worker to stop."""
        self.response.close()
        self.share.end()


@dataclass(frozen=True, slots=True)
class Failure:
    """Nothing came of a pair; `worker_gone`: its decode worker could not even be connected to."""

    reason: str
    worker_gone: bool = False


class Attempts:
    """Finds a pair that answers."""

    def __init__(
        self,
        registry: Registry,
        bell: Bell,
        session: aiohttp.ClientSession,
        engine: Engine,
        metrics: Metrics,
        overlap: Overlap,
    ) -> None:
        self._registry = registry
        self._bell = bell
        self._session = session
        self._engine = engine
        self._metrics = metrics
        self._overlap = overlap

    async def answer(self, asked: Asked, path: str, headers: dict[str, str], request_id: str) -> Answer:
        """The first answer that is the client's. Raises RefusedError (503) when no pair gave one."""
        tried, full, why = Tried(), None, ""
        for number in range(TRIES):
            pair = await self._pair(asked, tried)
            if isinstance(pair, Nowhere):
                why = f"{why}; {pair.reason}" if why else pair.reason
                break
            if number:
                self._metrics.retries.inc()
            sent = {**headers, **self._engine.headers(pair, request_id)}
            came = await self._try(pair, asked, path, sent)
            if isinstance(came, Failure):
                tried = tried.without_worker(pair.decode.name) if came.worker_gone else tried.without_pair(pair)
            else:
                verdict = self._engine.verdict(came.response.status, came.response.headers)
                if verdict is Verdict.PASS_ON or (verdict is Verdict.FULL and full is not None):
                    self._judge(pair, tried, came)
                    return came
                if verdict is Verdict.FULL:
                    full, tried = came, tried.without_worker(pair.decode.name)
                else:
                    tried = tried.without_pair(pair)
            why = _why(pair, came)
            log.warning("request %s: %s (chosen because %s)", request_id, why, pair.reason)
        if full is not None:
            return full
        raise RefusedError(503, f"No workers could serve this request: {why}.", "no_worker", retry_after_s=1)

    async def _pair(self, asked: Asked, tried: Tried) -> Pair | Nowhere:
        """The next pair. For the first one a role without a worker is waited for; after a failure it is not."""
        clock = asyncio.get_running_loop().time
        end = clock() + WORKER_WAIT_S
        while True:
            ask = Ask(asked.prompt_tokens, self._overlap.cached(asked.blocks))
            choice = self._registry.choose(ask, tried, clock())
            left = end - clock()
            if isinstance(choice, Pair) or tried.pairs or tried.workers or left <= 0:
                return choice
            await self._bell.wait(left)

    async def _try(self, pair: Pair, asked: Asked, path: str, headers: dict[str, str]) -> Answer | Failure:
        """One pair, up to its first bytes."""
        had = self._overlap.cached(asked.blocks).get((pair.prefill or pair.decode).name, 0)
        share = self._registry.begin(pair, max(asked.prompt_tokens - had, 0))
        came = None
        try:
            came = await self._begun(pair, share, asked, path, headers)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            self._registry.penalise(pair.decode.name, asyncio.get_running_loop().time())
            return Failure(f"cannot connect ({error})", worker_gone=True)
        except (aiohttp.ClientError, OSError, BrokenStreamError) as error:
            return Failure(f"{type(error).__name__}: {error}")
        finally:
            if came is None:
                share.end()
        return came

    def _judge(self, pair: Pair, tried: Tried, came: Answer) -> None:
        """After an answer: its workers are well, those whose fault the tries before it were are avoided for a while."""
        if came.response.status != 200:
            return
        now = asyncio.get_running_loop().time()
        for name in pair.key:
            self._registry.forgive(name)
        for name in culprits(tried, pair):
            self._registry.penalise(name, now)

    async def _begun(self, pair: Pair, share: Share, asked: Asked, path: str, headers: dict[str, str]) -> Answer:
        response = await self._session.post(
            f"http://{pair.decode.address}{path}", data=asked.body, headers=headers, allow_redirects=False
        )
        answer = None
        try:
            streamed = response.status == 200 and response.content_type == "text/event-stream"
            body = await (response.content.readany() if streamed else whole(response))
            if streamed and not body:
                raise BrokenStreamError("the worker ended the stream before its first byte")
            answer = Answer(response, share, body, streamed)
            if not streamed:
                answer.close()  # all of it is here
            return answer
        finally:
            if answer is None:
                response.close()


def new_session() -> aiohttp.ClientSession:
    """Connections to workers: kept, never to anywhere else (no proxies, cookies, redirects); bytes as they come."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30, ttl_dns_cache=None),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=("Accept-Encoding", "User-Agent"),
        trust_env=False,
    )


async def whole(response: aiohttp.ClientResponse) -> bytes:
    """All of an answer. Raises BrokenStreamError where it is too long."""
    parts, size = [], 0
    while data := await response.content.readany():
        size += len(data)
        if size > LONGEST_ANSWER:
            raise BrokenStreamError(f"the answer is longer than {LONGEST_ANSWER} bytes")
        parts.append(data)
    return b"".join(parts)


def _why(pair: Pair, came: Answer | Failure) -> str:
    names = f"{pair.prefill.name} with {pair.decode.name}" if pair.prefill else f"{pair.decode.name} alone"
    if isinstance(came, Failure):
        return f"{names}: {came.reason}"
    return f"{names}: {came.response.status} {came.body[:300].decode(errors='replace')}"
