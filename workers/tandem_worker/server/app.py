"""The routes."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import ContentEncodingError, TransferEncodingError

from tandem_worker.server.bodies import ChatBody, CompletionBody, parse_body
from tandem_worker.server.completions import answer
from tandem_worker.server.errors import ApiError, Problem, no_model
from tandem_worker.server.service import Phase, Service
from tandem_worker.server.tokens import DetokenizeBody, TokenizeBody, detokenize, tokenize

LOG = logging.getLogger(__name__)
BODY_BYTES: Final = 4 * 1024 * 1024
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(service: Service) -> web.Application:
    """All that port 8000 serves."""
    app = web.Application(client_max_size=BODY_BYTES, middlewares=[errors_in_openai_form])
    routes = Routes(service)
    app.add_routes([
        web.get("/health", routes.health),
        web.get("/ready", routes.ready),
        web.get("/metrics", routes.metrics),
        web.get("/kv_events", routes.kv_events),
        web.get("/v1/models", routes.models),
        web.get("/v1/models/{model:.+}", routes.model),
        web.post("/v1/chat/completions", routes.chat),
        web.post("/v1/completions", routes.complete),
        web.post("/tokenize", routes.tokenize),
        web.post("/detokenize", routes.detokenize),
    ])  # fmt: skip
    return app


class Routes:
    """A method a route."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def health(self, request: web.Request) -> web.Response:  # noqa: ARG002
        """Alive, whatever else."""
        return web.Response(text="ok\n")

    async def ready(self, request: web.Request) -> web.Response:  # noqa: ARG002
        """Can a new request be sent here?"""
        phase = self._service.phase
        return web.Response(text=f"{phase.value}\n", status=200 if phase is Phase.READY else 503)

    async def metrics(self, request: web.Request) -> web.Response:  # noqa: ARG002
        """Prometheus' text format."""
        body = self._service.metrics.exposition()
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def kv_events(self, request: web.Request) -> web.StreamResponse:
        """What the prefix cache holds, as it changes."""
        return await self._service.readers.serve(self._service.loaded.engine.events, request)

    async def models(self, request: web.Request) -> web.Response:  # noqa: ARG002
        """The one model."""
        return web.json_response({"object": "list", "data": [self._card()]})

    async def model(self, request: web.Request) -> web.Response:
        """The one model, by name."""
        name = request.match_info["model"]
        if name != self._service.served_name:
            raise no_model(name, self._service.served_name)
        return web.json_response(self._card())

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        return await answer(self._service, request, parse_body(ChatBody, await request.read()))

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/completions."""
        return await answer(self._service, request, parse_body(CompletionBody, await request.read()))

    async def tokenize(self, request: web.Request) -> web.Response:
        """POST /tokenize."""
        return web.json_response(await tokenize(self._service, parse_body(TokenizeBody, await request.read())))

    async def detokenize(self, request: web.Request) -> web.Response:
        """POST /detokenize."""
        return web.json_response(await detokenize(self._service, parse_body(DetokenizeBody, await request.read())))

    def _card(self) -> dict[str, Any]:
        name = self._service.served_name
        return {
            "id": name,
            "object": "model",
            "created": self._service.started,
            "owned_by": "tandem",
            "root": name,
            "parent": None,
            "max_model_len": self._service.loaded.max_context,
        }


@web.middleware
async def errors_in_openai_form(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every refusal has a body that OpenAI's clients can read."""
    try:
        return await handler(request)
    except ApiError as error:
        problem = error.problem
    except web.HTTPRequestEntityTooLarge:
        problem = Problem(413, f"the body is larger than {BODY_BYTES} bytes", code="body_too_large")
    except web.HTTPException as error:
        problem = Problem(error.status, error.reason or "refused")
    except (web.RequestPayloadError, ContentEncodingError, TransferEncodingError) as error:
        problem = Problem(400, f"the body cannot be read: {error}"[:300])
    except Exception:
        LOG.exception("%s %s failed", request.method, request.path)
        problem = Problem(500, "the worker failed; its log says more", "server_error", code="internal_error")
    return web.Response(
        body=problem.body(), status=problem.status, headers=dict(problem.headers), content_type="application/json"
    )
