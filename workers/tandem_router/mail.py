"""What workers are sent and what they answer: one exchange, or two at once of which either may end the other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import aiohttp

from tandem_router.engines.base import BrokenStreamError
from tandem_router.engines.tandem import ERROR_MARKS
from tandem_router.worker import Worker

CONNECT_S = 2.0
LONGEST_ANSWER = 32 * 1024 * 1024


class UnreachableError(Exception):
    """A worker cannot be connected to."""

    def __init__(self, worker: str, why: object) -> None:
        super().__init__(f"{worker}: {why}")
        self.worker = worker


@dataclass(frozen=True, slots=True)
class Heard:
    """A worker's answer: its first bytes when `streamed`, else the whole body."""

    worker: str
    response: aiohttp.ClientResponse
    body: bytes
    streamed: bool

    async def more(self) -> bytes:
        """More of a stream, as it comes; empty at its end. Raises BrokenStreamError."""
        try:
            return await self.response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise BrokenStreamError(f"the worker broke off: {type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class Mail:
    """Carries the bodies of one try: its path and its headers are the same for both workers."""

    session: aiohttp.ClientSession
    path: str
    headers: dict[str, str]

    async def ask(self, worker: Worker, body: bytes) -> Heard:
        """Up to the first bytes of a stream, or the whole answer. Raises UnreachableError, BrokenStreamError."""
        response = await self._post(worker, body)
        heard = None
        try:
            streamed = response.status == 200 and response.content_type == "text/event-stream"
            came = await (response.content.readany() if streamed else whole(response))
            if streamed and not came:
                raise BrokenStreamError("the worker ended the stream before its first byte")
            if streamed and came.startswith(ERROR_MARKS):
                raise BrokenStreamError(f"the worker's first event is an error: {came[:300].decode(errors='replace')}")
            heard = Heard(worker.name, response, came, streamed)
        finally:
            if heard is None:
                response.close()
        return heard

    async def both(
        self, prefill: Worker, prefill_body: bytes, decode: Worker, decode_body: bytes
    ) -> tuple[Heard, asyncio.Task[Heard] | None]:
        """The decode worker's answer, and the prefill worker's that goes on beside it; or the latter's error alone.

        Without the prefill worker the decode worker would wait in vain, so an error there ends both.
        """
        beside = asyncio.create_task(self._drained(prefill, prefill_body), name="prefill")
        answer = asyncio.create_task(self.ask(decode, decode_body), name="decode")
        kept = False
        try:
            await asyncio.wait({beside, answer}, return_when=asyncio.FIRST_COMPLETED)
            if beside.done() and not answer.done() and (refusal := beside.result()).response.status != 200:
                return refusal, None
            heard = await answer
            kept = True
            return heard, beside
        finally:
            if not kept:
                await _end(beside, answer)

    async def _post(self, worker: Worker, body: bytes) -> aiohttp.ClientResponse:
        url = f"http://{worker.address}{self.path}"
        try:
            return await self.session.post(url, data=body, headers=self.headers, allow_redirects=False)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise UnreachableError(worker.name, error) from error

    async def _drained(self, worker: Worker, body: bytes) -> Heard:
        """An answer that nobody reads, to its end: a stream that is left standing would hold its worker up."""
        heard = await self.ask(worker, body)
        try:
            while heard.streamed and await heard.more():
                pass
        finally:
            heard.response.close()
        return heard


async def _end(*tasks: asyncio.Task[Heard]) -> None:
    """Cancel them, and give back the connection of one that had an answer already."""
    for task in tasks:
        task.cancel()
    for found in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(found, Heard):
            found.response.close()


async def whole(response: aiohttp.ClientResponse) -> bytes:
    """All of an answer. Raises BrokenStreamError where it is too long."""
    parts, size = [], 0
    while data := await response.content.readany():
        size += len(data)
        if size > LONGEST_ANSWER:
            raise BrokenStreamError(f"the answer is longer than {LONGEST_ANSWER} bytes")
        parts.append(data)
    return b"".join(parts)
