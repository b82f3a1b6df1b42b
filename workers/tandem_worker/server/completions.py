"""One completion, from the checked body to the last byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aiohttp import web

from tandem_worker.engine.request import (
    EngineError,
    InvalidRequestError,
    PromptTooLongError,
    QueueFullError,
    Sampling,
    Token,
)
from tandem_worker.server.bodies import ChatBody, CompletionBody
from tandem_worker.server.errors import ApiError, bad_pair, bad_request, no_model, too_busy
from tandem_worker.server.job import Job, JobFailedError
from tandem_worker.server.pace import Pace
from tandem_worker.server.replies import Reply, error_event
from tandem_worker.server.text import Piece, TextState

if TYPE_CHECKING:
    from tandem_worker.server.service import Service

WRITE_S: Final = 30.0  # a client that reads nothing for so long is gone
GAP_S: Final = 120.0  # between two tokens of one request; more means that the engine is stuck
LONG_TEXT: Final = 8192  # characters; longer texts are tokenised beside the event loop, shorter ones sooner in it


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a body asks for, in tokens."""

    prompt: list[int]
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its answer in the making."""

    service: Service
    request: web.Request
    reply: Reply
    job: Job
    pace: Pace

    def add(self, tokens: list[Token]) -> list[Piece]:
        """Pieces of these tokens, up to the answer's end: after a stop string the engine may be a step ahead."""
        pieces: list[Piece] = []
        for token in tokens:
            self.pace.tick()
            pieces.append(self.reply.add(token))
            if self.reply.finish is not None:
                break
        return pieces

    @property
    def headers(self) -> dict[str, str]:
        """Which way the request went."""
        return {
            "x-tandem-path": self.job.path,
            "x-tandem-worker": self.service.worker,
            "x-tandem-prefill-worker": self.job.prefill_worker,
        }


async def answer(service: Service, request: web.Request, body: ChatBody | CompletionBody) -> web.StreamResponse:
    """Serve one checked body. Raises ApiError before the first byte; later failures become an error event."""
    pace = Pace(service.metrics)
    wanted = await understand(service, body)
    async with begun(service, request, wanted) as job:
        exchange = Exchange(service, request, make_reply(service, body, wanted, job), job, pace)
        try:
            tokens = await job.take(service.first_token_s)
            if body.stream:
                return await stream(exchange, tokens)
            return await whole(exchange, tokens)
        except JobFailedError as error:  # nothing was sent yet
            raise ApiError(error.problem) from error


@asynccontextmanager
async def begun(service: Service, request: web.Request, wanted: Wanted) -> AsyncIterator[Job]:
    """A job that is given up whatever happens: done, failed, or the client has left. Raises ApiError."""
    service.active += 1
    job: Job | None = None
    try:
        try:
            job = await service.start(wanted.prompt, wanted.sampling, request.headers)
        except EngineError as error:
            raise refusal(error) from error
        yield job
    finally:
        service.active -= 1
        if job is not None:
            job.cancel()


async def stream(exchange: Exchange, tokens: list[Token]) -> web.StreamResponse:
    """Server-sent events; the head leaves together with the first token."""
    reply, job = exchange.reply, exchange.job
    headers = {**exchange.headers, "Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
    response = web.StreamResponse(headers=headers)
    await response.prepare(exchange.request)
    try:
        while True:
            await write(response, b"".join(reply.stream_piece(piece) for piece in exchange.add(tokens)))
            if reply.finish is not None:
                break
            tokens = await job.take(GAP_S)
        exchange.pace.finish()
        await write(response, reply.stream_end(job, exchange.service.worker))
    except JobFailedError as error:
        await write(response, error_event(error.problem.fields()))
    except TimeoutError:  # the client reads nothing: there is nobody to tell
        if exchange.request.transport is not None:
            exchange.request.transport.abort()
        return response
    await response.write_eof()
    return response


async def whole(exchange: Exchange, tokens: list[Token]) -> web.Response:
    """One JSON body."""
    while True:
        exchange.add(tokens)
        if exchange.reply.finish is not None:
            break
        tokens = await exchange.job.take(GAP_S)
    exchange.pace.finish()
    body = exchange.reply.body(exchange.job, exchange.service.worker)
    return web.Response(body=body, content_type="application/json", headers=exchange.headers)


async def write(response: web.StreamResponse, data: bytes) -> None:
    """Raises TimeoutError when the client has stopped reading: the buffer before it is bounded by aiohttp."""
    if data:
        async with asyncio.timeout(WRITE_S):
            await response.write(data)


async def understand(service: Service, body: ChatBody | CompletionBody) -> Wanted:
    """The body in tokens. Raises ApiError."""
    loaded = service.loaded
    if body.model != service.served_name:
        raise no_model(body.model, service.served_name)
    wanted, logprobs = body.wanted_tokens, body.logprob_count
    prompt = await tokenise(service, body)
    room = loaded.max_context - len(prompt)
    if room < 1 or (wanted or 1) > room:
        raise too_long(loaded.max_context, len(prompt), wanted)
    return Wanted(prompt, make_sampling(body, wanted or room, logprobs))


async def tokenise(service: Service, body: ChatBody | CompletionBody) -> list[int]:
    """The prompt's ids. Raises ApiError."""
    tokenizer = service.loaded.tokenizer
    try:
        if isinstance(body, ChatBody):
            messages = [message.plain() for message in body.messages]
            if sum(len(message["content"]) for message in messages) > LONG_TEXT:
                return await asyncio.to_thread(tokenizer.apply_chat, messages)
            return tokenizer.apply_chat(messages)
        prompt = body.the_prompt
        if isinstance(prompt, list):
            return prompt
        if len(prompt) > LONG_TEXT:
            return await asyncio.to_thread(tokenizer.encode, prompt)
        return tokenizer.encode(prompt)
    except EngineError as error:
        raise refusal(error) from error


def make_sampling(body: ChatBody | CompletionBody, max_tokens: int, logprobs: int | None) -> Sampling:
    """OpenAI's fields → the engine's; OpenAI's defaults are temperature 1 and top_p 1."""
    return Sampling(
        max_tokens=max_tokens,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        seed=None if body.seed is None else body.seed % 2**63,
        stop_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        top_logprobs=logprobs or 0,
    )


def make_reply(service: Service, body: ChatBody | CompletionBody, wanted: Wanted, job: Job) -> Reply:
    """The empty answer."""
    tokenizer = service.loaded.tokenizer
    chat = isinstance(body, ChatBody)
    return Reply(
        id=("chatcmpl-" if chat else "cmpl-") + job.id.replace("#", "-"),
        model=service.served_name,
        chat=chat,
        tokenizer=tokenizer,
        text=TextState(tokenizer.decode_stream(), body.stops),
        prompt_tokens=len(wanted.prompt),
        logprob_count=body.logprob_count,
        include_usage=body.include_usage,
    )


def too_long(context: int, prompt: int, wanted: int | None) -> ApiError:
    """400 in OpenAI's words."""
    asked = f"{prompt} tokens in the prompt" + (f" and {wanted} to generate" if wanted else "")
    return bad_request(f"This model's maximum context length is {context} tokens; the request has {asked}.",
                       "messages", "context_length_exceeded")  # fmt: skip


def refusal(error: EngineError) -> ApiError:
    """An engine's refusal as a client sees it."""
    if isinstance(error, QueueFullError):
        return ApiError(too_busy(str(error)))
    if isinstance(error, PromptTooLongError):
        return bad_request(str(error), "messages", "context_length_exceeded")
    if isinstance(error, InvalidRequestError):
        return bad_request(str(error))
    return ApiError(bad_pair(str(error)))
