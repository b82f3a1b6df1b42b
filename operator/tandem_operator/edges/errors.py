"""What the world can answer instead of doing as asked."""

from __future__ import annotations


class ApiError(Exception):
    """The API server refused or did not answer; `reason` is one CamelCase word, the message a sentence."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class NotFoundError(ApiError):
    """There is no such object (or no such kind)."""


class ConflictError(ApiError):
    """The object is another one (uid), or newer (resourceVersion), than the one that was meant."""


class AlreadyExistsError(ApiError):
    """A create found an object of that name."""


class PrometheusError(Exception):
    """Prometheus did not answer, or not with what was asked; `reason` is one CamelCase word."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
