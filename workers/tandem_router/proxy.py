"""A completion's way: read, placed, answered by one stream that is spliced back as it was written."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass

from aiohttp import web

from tandem_router.asked import Asked, read_asked
from tandem_router.attempts import Answer, Attempts
from tandem_router.deadline import Deadline
from tandem_router.engines.base import Engine
from tandem_router.errors import RefusedError, refusal
from tandem_router.ledger import CLIENT_GONE, Journey, Ledger
from tandem_router.lobby import Lobby
from tandem_router.splice import Splice
from tandem_router.tracing import OFF, Span, Tracing

MAX_BODY = 4 * 1024 * 1024
MAX_INFLIGHT = 4096
# What of a client's headers goes on to the worker: everything else ends here, `x-tandem-*` above all.
TO_WORKER = ("traceparent", "tracestate")
TO_CLIENT = (
    "Content-Type",
    "Cache-Control",
    "Retry-After",
    "x-tandem-path",
    "x-tandem-worker",
    "x-tandem-prefill-worker",
)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long each thing may take, in seconds."""

    body: float = 30.0
    first_byte: float = 120.0
    whole_answer: float = 600.0  # not streamed: its first byte is its last
    between_bytes: float = 60.0
    slow_reader: float = 30.0


class Proxy:
    """Serves `/v1/chat/completions` and `/v1/completions`."""

    def __init__(
        self,
        attempts: Attempts,
        engine: Engine,
        ledger: Ledger,
        patience: Patience,
        tracing: Tracing = OFF,
        lobby: Lobby | None = None,
    ) -> None:
        self._lobby = lobby
        self._attempts = attempts
        self._engine = engine
        self._ledger = ledger
        self._patience = patience
        self._tracing = tracing
        self.draining = False

    async def completion(self, request: web.Request) -> web.StreamResponse:
        """Whatever happens, the request ends once in the ledger."""
        request_id = uuid.uuid4().hex
        journey = self._ledger.arrive()
        span = self._tracing.begin(f"POST {request.path}", request.headers.get("traceparent", ""))
        span.say("tandem.request_id", request_id)
        try:
            with Deadline() as deadline:
                response = await self._serve(request, journey, deadline, request_id, span.traceparent)
        except RefusedError as error:
            journey.code = error.status
            response = refusal(error, request_id)
        except asyncio.CancelledError:
            journey.code = CLIENT_GONE
            raise
        finally:
            self._ledger.end(journey)
            finish(span, journey)
        if self.draining and not response.prepared:
            response.force_close()
        return response

    async def _serve(
        self, request: web.Request, journey: Journey, deadline: Deadline, request_id: str, trace: str
    ) -> web.StreamResponse:
        if self._ledger.inflight > MAX_INFLIGHT:
            raise RefusedError(
                429, f"This router serves {MAX_INFLIGHT} requests already.", "router_full", retry_after_s=1
            )
        asked = read_asked(await self._body(request, deadline))
        if asked.stream:
            self._ledger.streams(journey)
        headers = {name: request.headers[name] for name in TO_WORKER if name in request.headers}
        if trace:
            headers["traceparent"] = trace
        if self._lobby is not None:
            await self._lobby.wait()
        answer = await self._answer(request.path, asked, headers, deadline, request_id)
        try:
            headers = _passed_on(answer, request_id)
            journey.path = headers.get("x-tandem-path", "")
            if not answer.streamed:
                return self._whole(answer, journey, headers)
            response = web.StreamResponse(headers=headers)
            if self.draining:
                response.force_close()
            await Splice(
                request=request,
                response=response,
                answer=answer,
                stream=self._engine.stream(keep_usage=asked.wants_usage),
                journey=journey,
                ledger=self._ledger,
                deadline=deadline,
                between_bytes_s=self._patience.between_bytes,
                slow_reader_s=self._patience.slow_reader,
            ).run()
            return response
        finally:
            answer.close()

    async def body(self, request: web.Request) -> bytes:
        """The whole body, within its bounds of size and time. Raises RefusedError."""
        with Deadline() as deadline:
            return await self._body(request, deadline)

    async def _body(self, request: web.Request, deadline: Deadline) -> bytes:
        if (request.content_length or 0) > MAX_BODY:
            raise _too_large()
        try:
            return await deadline.of(self._patience.body, request.read())
        except web.HTTPRequestEntityTooLarge as error:
            raise _too_large() from error
        except TimeoutError as error:
            raise RefusedError(408, f"The body did not arrive within {self._patience.body:g} s.", "timeout") from error
        except web.RequestPayloadError as error:
            raise RefusedError(400, f"The body cannot be read: {error}", "invalid_body") from error

    async def _answer(
        self, path: str, asked: Asked, headers: dict[str, str], deadline: Deadline, request_id: str
    ) -> Answer:
        headers["Content-Type"] = "application/json"
        limit = self._patience.first_byte if asked.stream else self._patience.whole_answer
        try:
            return await deadline.of(limit, self._attempts.answer(asked, path, headers, request_id))
        except TimeoutError as error:
            what = "first byte" if asked.stream else "answer"
            raise RefusedError(
                504, f"No {what} from a worker within {limit:g} s.", "timeout", retry_after_s=5
            ) from error

    def _whole(self, answer: Answer, journey: Journey, headers: dict[str, str]) -> web.Response:
        journey.code = answer.response.status
        if journey.code == 200:
            journey.usage = self._engine.usage(answer.body)
        return web.Response(status=answer.response.status, body=answer.body, headers=headers)


def finish(span: Span, journey: Journey) -> None:
    """What became of the request, for its trace."""
    span.say("http.response.status_code", journey.code)
    span.say("tandem.path", journey.path or "none")
    if journey.first_at is not None:
        span.say("gen_ai.server.time_to_first_token", journey.first_at - journey.began)
    if journey.usage is not None:
        span.say("gen_ai.usage.input_tokens", journey.usage.prompt_tokens)
        span.say("gen_ai.usage.output_tokens", journey.usage.output_tokens)
    span.end(f"ended with {journey.code}" if not 200 <= journey.code < 500 else "")


def _passed_on(answer: Answer, request_id: str) -> dict[str, str]:
    response = answer.response
    headers = dict(answer.told) if response.status == 200 else {}
    headers |= {name: response.headers[name] for name in TO_CLIENT if name in response.headers}
    headers["x-tandem-request-id"] = request_id
    return headers


def _too_large() -> RefusedError:
    return RefusedError(413, f"The body is larger than {MAX_BODY} bytes.", "body_too_large")
