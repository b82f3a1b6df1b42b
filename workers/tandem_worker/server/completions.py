"""One completion, from the checked body to the last byte."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from aiohttp import web

from tandem_worker.engine.request import EngineError, Token
from tandem_worker.server.asked import Wanted, prompt_origin, understand
from tandem_worker.server.bodies import ChatBody, CompletionBody
from tandem_worker.server.calls import CallList, CallReader, FreeCalls, NamedCall, Said
from tandem_worker.server.choice import Choice
from tandem_worker.server.errors import ApiError, refusal
from tandem_worker.server.guided import NamedChoice
from tandem_worker.server.job import JobFailedError, Jobs
from tandem_worker.server.pace import Pace
from tandem_worker.server.replies import Reply, error_event
from tandem_worker.server.text import TextState
from tandem_worker.server.write import write
from tandem_worker.tracing import Span

if TYPE_CHECKING:
    from tandem_worker.server.service import Service

GAP_S: Final = 120.0  # between two tokens of one request; more means that the engine is stuck
UNDER_WAY: Final = 2  # tokens after which a prompt's pages are here, findable by its other choices


@dataclass(frozen=True, slots=True)
class Part:
    """What one token adds to one choice."""

    choice: Choice
    said: Said
    last: bool


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its answer in the making."""

    service: Service
    request: web.Request
    wanted: Wanted
    jobs: Jobs
    reply: Reply
    paces: dict[int, Pace] = field(default_factory=dict)

    async def start(self, number: int) -> None:
        """Begin one choice. Raises ApiError."""
        prompt, sampling = self.wanted.part(number)
        self.paces.setdefault(number, Pace(self.service.metrics))
        try:
            job = await self.service.start(prompt, sampling, self.request.headers, self.jobs.news)
        except EngineError as error:
            raise ApiError(refusal(error)) from error
        self.jobs.by_choice[number] = job

    async def go_on(self, within_s: float) -> list[Part]:
        """The next pieces, and what they let begin. Raises JobFailedError."""
        pieces: list[Part] = []
        for number, tokens in await self.jobs.take(within_s):
            pieces += self._add(self.reply.choices[number], tokens)
        await self._start_others()
        return pieces

    def _add(self, choice: Choice, tokens: list[Token]) -> list[Part]:
        """Pieces of these tokens, up to the choice's end: after a stop string the engine may be a step ahead."""
        pieces: list[Part] = []
        for token in tokens:
            if choice.finish is not None:
                break
            self.paces[choice.number].tick()
            said = choice.add(token)
            pieces.append(Part(choice, said, last=choice.finish is not None))
            if choice.finish is not None:
                self.paces[choice.number].finish()
                self.jobs.by_choice[choice.number].cancel()
        return pieces

    async def _start_others(self) -> None:
        """A prompt's other choices begin once its first is under way: they share its pages, computed or sent once."""
        for first in range(0, self.wanted.choices, self.wanted.per_prompt):
            choice = self.reply.choices[first]
            if choice.tokens < UNDER_WAY and choice.finish is None:
                continue
            for number in range(first + 1, first + self.wanted.per_prompt):
                if number not in self.jobs.by_choice:
                    try:
                        await self.start(number)
                    except ApiError as error:
                        raise JobFailedError(error.problem) from error

    @property
    def headers(self) -> dict[str, str]:
        """Which way the request went."""
        return {
            "x-tandem-path": self.jobs.first.path,
            "x-tandem-worker": self.service.worker,
            "x-tandem-prefill-worker": self.jobs.first.prefill_worker,
        }


async def answer(service: Service, request: web.Request, body: ChatBody | CompletionBody) -> web.StreamResponse:
    """Serve one checked body, as a span of its trace. See `_answer`."""
    span = service.tracing.begin("serve", request.headers.get("traceparent", ""))
    problem = "the client left"
    try:
        response = await _answer(service, request, body, span)
        problem = ""
    except ApiError as error:
        problem = error.problem.message if error.problem.status >= 500 else ""
        raise
    else:
        return response
    finally:
        span.end(problem)


async def _answer(
    service: Service, request: web.Request, body: ChatBody | CompletionBody, span: Span
) -> web.StreamResponse:
    """Raises ApiError before the first byte; later failures become an error event."""
    arrived = Pace(service.metrics)
    wanted = await understand(service, body, prompt_origin(await request.read()), span.traceparent)
    async with begun(service) as jobs:
        exchange = Exchange(service, request, wanted, jobs, make_reply(service, body, wanted))
        exchange.paces[0] = arrived
        for number in range(0, wanted.choices, wanted.per_prompt):
            await exchange.start(number)
        exchange.reply.name(jobs.first.id)
        span.say("tandem.path", jobs.first.path)
        span.say("tandem.prefill_worker", jobs.first.prefill_worker)
        try:
            pieces = await exchange.go_on(service.first_token_s)
            if body.stream:
                return await stream(exchange, pieces)
            return await whole(exchange)
        except JobFailedError as error:  # nothing was sent yet
            raise ApiError(error.problem) from error


@asynccontextmanager
async def begun(service: Service) -> AsyncIterator[Jobs]:
    """Jobs that are given up whatever happens: done, failed, or the client has left."""
    service.active += 1
    jobs = Jobs()
    try:
        yield jobs
    finally:
        service.active -= 1
        jobs.cancel()


async def stream(exchange: Exchange, pieces: list[Part]) -> web.StreamResponse:
    """Server-sent events; the head leaves together with the first token."""
    reply = exchange.reply
    headers = {**exchange.headers, "Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
    response = web.StreamResponse(headers=headers)
    await response.prepare(exchange.request)
    try:
        while True:
            await write(response, b"".join(reply.stream_piece(one.choice, one.said, last=one.last) for one in pieces))
            if reply.done:
                break
            pieces = await exchange.go_on(GAP_S)
        await write(response, reply.stream_end(exchange.jobs, exchange.service.worker))
    except JobFailedError as error:
        await write(response, error_event(error.problem.fields()))
    except TimeoutError:  # the client reads nothing: there is nobody to tell
        if exchange.request.transport is not None:
            exchange.request.transport.abort()
        return response
    await response.write_eof()
    return response


async def whole(exchange: Exchange) -> web.Response:
    """One JSON body."""
    while not exchange.reply.done:
        await exchange.go_on(GAP_S)
    body = exchange.reply.body(exchange.jobs, exchange.service.worker)
    return web.Response(body=body, content_type="application/json", headers=exchange.headers)


def make_reply(service: Service, body: ChatBody | CompletionBody, wanted: Wanted) -> Reply:
    """The empty answer."""
    tokenizer = service.loaded.tokenizer
    chat = isinstance(body, ChatBody)
    choices = [
        Choice(
            number=number,
            chat=chat,
            tokenizer=tokenizer,
            text=TextState(tokenizer.decode_stream(), body.stops, body.min_tokens or 0),
            logprob_count=body.logprob_count,
            calls=make_reader(body),
        )
        for number in range(wanted.choices)
    ]
    return Reply(
        model=service.served_name,
        chat=chat,
        choices=choices,
        prompt_tokens=sum(len(prompt) for prompt in wanted.prompts),
        include_usage=body.include_usage,
    )


def make_reader(body: ChatBody | CompletionBody) -> CallReader | None:
    """Who looks for calls in one choice's output; None: nobody."""
    if isinstance(body, CompletionBody):
        return None
    match body.choice_of_tools:
        case "none":
            return None
        case NamedChoice(function=function):
            return NamedCall(function.name)
        case "required":
            return CallList()
        case _:
            return FreeCalls(frozenset(tool.function.name for tool in body.tools or ()))
