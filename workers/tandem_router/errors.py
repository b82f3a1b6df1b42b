"""Refusals as OpenAI clients know them: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import msgspec
from aiohttp import web


class RefusedError(Exception):
    """A request that ends with an error object; `status` is HTTP's, `retry_after_s` in whole seconds."""

    def __init__(
        self, status: int, message: str, code: str, *, param: str | None = None, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s


def error_type(status: int) -> str:
    """OpenAI's word for a kind of error."""
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


def error_body(error: RefusedError) -> bytes:
    """The error object as JSON."""
    kind = error_type(error.status)
    return msgspec.json.encode(
        {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}
    )


def error_event(error: RefusedError) -> bytes:
    """The error object as one server-sent event: how a stream that broke tells its client."""
    return b"event: error\ndata: " + error_body(error) + b"\n\n"


def refusal(error: RefusedError, request_id: str = "") -> web.Response:
    """The whole answer."""
    headers = {"x-tandem-request-id": request_id} if request_id else {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    return web.Response(status=error.status, body=error_body(error), content_type="application/json", headers=headers)
