"""Refusals and failures in OpenAI's form: `{"error": {message, type, param, code}}`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from tandem_worker.engine.request import EngineError, InvalidRequestError, PromptTooLongError, QueueFullError

if TYPE_CHECKING:
    from tandem_worker.transfer.pull import Failure


@dataclass(frozen=True, slots=True)
class Problem:
    """One failure as a client sees it."""

    status: int
    message: str
    kind: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> bytes:
        """The JSON error object."""
        return msgspec.json.encode({"error": self.fields()})

    def fields(self) -> dict[str, Any]:
        """What stands inside `error`."""
        return {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}


class ApiError(Exception):
    """Ends a request with this problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the client has to change something."""
    return ApiError(Problem(400, message, param=param, code=code))


def unsupported(param: str, what: str) -> ApiError:
    """400: understood, and not carried out."""
    return bad_request(f"{what} is not supported by this server; leave {param} out", param, "unsupported_parameter")


def no_model(asked: str, served: str) -> ApiError:
    """404 in OpenAI's words."""
    message = f"The model `{asked[:200]}` does not exist; this server has `{served}`"
    return ApiError(Problem(404, message, "not_found_error", "model", "model_not_found"))


def too_busy(message: str, retry_after_s: int = 1) -> Problem:
    """429: the queue is full."""
    return Problem(429, message, "rate_limit_error", code="queue_full", headers={"Retry-After": str(retry_after_s)})


def bad_pair(message: str) -> Problem:
    """503: this pair of workers cannot serve the request; another one may."""
    return Problem(503, message, "server_error", code="pair_failed", headers={"x-tandem-retry": "pair"})


def not_ready(phase: str) -> ApiError:
    """503: no model is loaded (yet)."""
    return ApiError(Problem(503, f"this worker is {phase}", "server_error", code="not_ready",
                            headers={"x-tandem-retry": "pair"}))  # fmt: skip


def refusal(error: EngineError) -> Problem:
    """An engine's refusal as a client sees it."""
    if isinstance(error, QueueFullError):
        return too_busy(str(error), error.retry_after_s)
    if isinstance(error, PromptTooLongError):
        return Problem(400, str(error), param="messages", code="context_length_exceeded")
    if isinstance(error, InvalidRequestError):
        return Problem(400, str(error))
    return bad_pair(str(error))


def problem_of(failure: Failure) -> Problem:
    """How a failed transfer is told before the first byte."""
    if failure.code == "queue_full":
        return too_busy(failure.reason, failure.retry_after_s)
    if failure.code == "too_long":
        return Problem(400, failure.reason, param="messages", code="context_length_exceeded")
    return bad_pair(failure.reason)
