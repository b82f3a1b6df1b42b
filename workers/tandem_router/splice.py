"""One worker's stream to one client, written as it was received."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from tandem_router.attempts import Answer
from tandem_router.deadline import Deadline
from tandem_router.engines.base import BrokenStreamError, Stream
from tandem_router.errors import RefusedError, error_event
from tandem_router.ledger import BROKE, CLIENT_GONE, Journey, Ledger


class ClientGoneError(Exception):
    """The client left, or reads so slowly that it is left."""


@dataclass(slots=True)
class Splice:
    """`run` it once. `between_bytes_s`: what a worker may pause; `slow_reader_s`: what a full client may."""

    request: web.Request
    response: web.StreamResponse
    answer: Answer
    stream: Stream
    journey: Journey
    ledger: Ledger
    deadline: Deadline
    between_bytes_s: float
    slow_reader_s: float

    async def run(self) -> None:
        """To its end. What breaks after the first byte ends in an error event; before it, RefusedError (502)."""
        self.journey.code = 200
        try:
            try:
                await self._pump()
            except (BrokenStreamError, TimeoutError) as error:
                await self._break_off(error)
            await self._end()
        except ClientGoneError:
            self.journey.code = CLIENT_GONE
            if self.request.transport is not None:
                self.request.transport.abort()
        if self.stream.failed:
            self.journey.code = BROKE
        self.journey.usage = self.stream.usage

    async def _pump(self) -> None:
        data = self.answer.body
        while data:
            if out := self.stream.feed(data):
                await self._send(out)
                if self.stream.fresh:
                    self.ledger.sent(self.journey)
                    self.answer.share.prefilled()
            data = await self.deadline.of(self.between_bytes_s, self.answer.read())
        if not self.stream.ended and not self.stream.failed:
            raise BrokenStreamError("the worker ended the stream without [DONE]")

    async def _send(self, data: bytes) -> None:
        try:
            if not self.response.prepared:
                await self.response.prepare(self.request)
            await self.deadline.of(self.slow_reader_s, self.response.write(data))
        except (ConnectionError, TimeoutError) as error:
            raise ClientGoneError from error

    async def _end(self) -> None:
        try:
            await self.deadline.of(self.slow_reader_s, self.response.write_eof())
        except (ConnectionError, TimeoutError) as error:
            raise ClientGoneError from error

    async def _break_off(self, error: Exception) -> None:
        if self.stream.ended:
            return  # all was said; only the goodbye was missing
        self.journey.code = BROKE
        words = str(error) or f"nothing came from the worker for {self.between_bytes_s:g} s"
        broken = RefusedError(BROKE, f"The answer broke off: {words}.", "stream_broken", retry_after_s=1)
        if not self.response.prepared:
            raise broken
        await self._send(error_event(broken))
