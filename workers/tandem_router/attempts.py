"""From a request to the first byte of an answer: up to three pairs of workers, each tried once."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

import aiohttp

from tandem_router.asked import Asked
from tandem_router.engines.base import BadAnswerError, BrokenStreamError, Engine, Errand, Order, Verdict
from tandem_router.errors import RefusedError
from tandem_router.mail import CONNECT_S, Heard, Mail, UnreachableError
from tandem_router.metrics import Metrics
from tandem_router.overlap import Overlap
from tandem_router.placement import Ask, Nowhere, Pair, Tried, culprits
from tandem_router.workers import Registry, Share

TRIES = 3
WORKER_WAIT_S = 5.0  # as long as a flip or a restart may leave a role without a worker

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
    """A worker's answer: its first bytes when `streamed`, else the whole body. Closing it gives the load back.

    `told`: what the client is told of its way, where the worker's own headers do not.
    """

    heard: Heard
    share: Share
    told: dict[str, str]
    beside: asyncio.Task[Heard] | None = None  # the prefill worker's answer to the same request

    @property
    def response(self) -> aiohttp.ClientResponse:
        """Status and headers."""
        return self.heard.response

    @property
    def body(self) -> bytes:
        """What came of it so far."""
        return self.heard.body

    @property
    def streamed(self) -> bool:
        """Is there more to `read`?"""
        return self.heard.streamed

    async def read(self) -> bytes:
        """More of a stream, as it comes; empty at its end. Raises BrokenStreamError."""
        return await self.heard.more()

    def close(self) -> None:
        """Done with it. A connection that was not read to its end is closed, which tells the worker to stop."""
        self.response.close()
        if self.beside is not None:
            self.beside.cancel()
        self.share.end()


@dataclass(frozen=True, slots=True)
class Failure:
    """Nothing came of a pair; `gone`: the worker that could not even be connected to."""

    reason: str
    gone: str = ""


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
            came = await self._try(pair, asked, Mail(self._session, path, sent))
            if isinstance(came, Failure):
                tried = tried.without_worker(came.gone) if came.gone else tried.without_pair(pair)
            else:
                verdict = self._engine.verdict(came.response.status, came.response.headers)
                if verdict is Verdict.PASS_ON or (verdict is Verdict.FULL and full is not None):
                    self._judge(pair, tried, came)
                    return came
                if verdict is Verdict.FULL:
                    full, tried = came, tried.without_worker(came.heard.worker)
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

    async def _try(self, pair: Pair, asked: Asked, mail: Mail) -> Answer | Failure:
        """One pair, up to its first bytes."""
        errand = self._engine.errand(pair, asked.body)
        had = self._overlap.cached(asked.blocks).get((pair.prefill or pair.decode).name, 0)
        share = self._registry.begin(pair, max(asked.prompt_tokens - had, 0))
        came = None
        try:
            came = await carry_out(errand, pair, share, mail)
        except UnreachableError as error:
            self._registry.penalise(error.worker, asyncio.get_running_loop().time())
            return Failure(f"cannot connect ({error})", gone=error.worker)
        except (aiohttp.ClientError, OSError, BrokenStreamError, BadAnswerError) as error:
            return Failure(f"{type(error).__name__}: {error}")
        finally:
            if came is None:
                share.end()
        if not came.streamed:
            came.close()  # all of it is here
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


async def carry_out(errand: Errand, pair: Pair, share: Share, mail: Mail) -> Answer:
    """Send the pair's workers what the errand says. A prefill worker's refusal is the whole answer."""
    told = told_of(pair, errand)
    if errand.order is Order.BESIDE and pair.prefill is not None:
        heard, beside = await mail.both(pair.prefill, errand.prefill_body, pair.decode, errand.decode_body(b""))
        return Answer(heard, share, told, beside)
    prefilled = b""
    if errand.order is Order.BEFORE and pair.prefill is not None:
        heard = await mail.ask(pair.prefill, errand.prefill_body)
        if heard.response.status != 200:
            return Answer(heard, share, told)
        share.prefilled()
        prefilled = heard.body
    return Answer(await mail.ask(pair.decode, errand.decode_body(prefilled)), share, told)


def told_of(pair: Pair, errand: Errand) -> dict[str, str]:
    """The way of a request whose workers do not tell it themselves."""
    prefill = pair.prefill.name if pair.prefill and errand.order is not Order.NEVER else ""
    return {
        "x-tandem-path": "disaggregated" if prefill else "local",
        "x-tandem-worker": pair.decode.name,
        "x-tandem-prefill-worker": prefill,
    }


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


def _why(pair: Pair, came: Answer | Failure) -> str:
    names = f"{pair.prefill.name} with {pair.decode.name}" if pair.prefill else f"{pair.decode.name} alone"
    if isinstance(came, Failure):
        return f"{names}: {came.reason}"
    return f"{names}: {came.response.status} {came.body[:300].decode(errors='replace')}"
