r"""Tandem workers: the decode worker gets the request and the prefill worker's address, and answers with one stream.

Server-sent events end with an empty line (`\n\n`); with `include_usage` the last event before `[DONE]` has no choices
and a `usage` object. The first event comes with the first token: a failure before it is a status, not an
event. Everything else passes as the bytes that it came in.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tandem_router.engines.base import BrokenStreamError, DecodeOnly, Errand, Usage, Verdict
from tandem_router.placement import Pair

LONGEST_EVENT = 1024 * 1024
END = b"\n\n"
DONE = b"data: [DONE]"
# Inside a JSON string these quotes would be escaped, so content cannot look like this.
USAGE_MARKS = (b'"usage":{', b'"usage": {')
ERROR_MARKS = (b'data: {"error"', b"event: error")
SPECIAL = (DONE, *USAGE_MARKS, *ERROR_MARKS)
CHOICES = b'"choices":[{'


class _Details(msgspec.Struct):
    cached_tokens: int = 0


class _Counts(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct):
    choices: list[msgspec.Raw] | None = None
    usage: _Counts | None = None


_CHUNK = msgspec.json.Decoder(_Chunk)


class TandemEngine:
    """The Tandem worker's protocol."""

    works_alone = True

    def headers(self, pair: Pair, request_id: str) -> dict[str, str]:
        """The request's id, and where to have the prompt computed (absent: right here)."""
        if pair.prefill is None:
            return {"x-tandem-request-id": request_id}
        return {
            "x-tandem-request-id": request_id,
            "x-tandem-prefill": pair.prefill.kv_address,
            "x-tandem-prefill-name": pair.prefill.name,
        }

    def errand(self, pair: Pair, body: bytes) -> Errand:  # noqa: ARG002 the headers name the pair
        """The decode worker alone is asked; it asks the prefill worker."""
        return DecodeOnly(body)

    def verdict(self, status: int, headers: Mapping[str, str]) -> Verdict:
        """503 with `x-tandem-retry: pair`: another pair; 429: full; all else is the client's."""
        if status == 503 and headers.get("x-tandem-retry") == "pair":
            return Verdict.ANOTHER_PAIR
        return Verdict.FULL if status == 429 else Verdict.PASS_ON

    def stream(self, *, keep_usage: bool) -> TandemStream:
        """See `Engine.stream`."""
        return TandemStream(keep_usage)

    def usage(self, body: bytes) -> Usage | None:
        """The body's usage object."""
        return _usage_of(_decoded(body))


class TandemStream:
    """See `Stream`. Holds back only the beginning of an event whose end has not come yet."""

    __slots__ = ("_keep_usage", "_rest", "ended", "failed", "fresh", "usage")

    def __init__(self, keep_usage: bool) -> None:
        self._keep_usage = keep_usage
        self._rest = b""
        self.fresh = False
        self.ended = False
        self.failed = False
        self.usage: Usage | None = None

    def feed(self, data: bytes) -> bytes:
        """See `Stream.feed`; a read of whole, ordinary events is handed on as it is."""
        if self._rest:
            data = self._rest + data
            self._rest = b""
        if not data.endswith(END):
            data = self._hold_back(data)
            if not data:
                self.fresh = False
                return b""
        if CHOICES not in data:
            return self._look_closely(data)
        for mark in SPECIAL:
            if mark in data:
                return self._look_closely(data)
        self.fresh = True
        return data

    def _hold_back(self, data: bytes) -> bytes:
        end = data.rfind(END) + len(END) if END in data else 0
        self._rest = data[end:]
        if len(self._rest) > LONGEST_EVENT:
            raise BrokenStreamError(f"an event is longer than {LONGEST_EVENT} bytes")
        return data[:end]

    def _look_closely(self, data: bytes) -> bytes:
        self.fresh = False
        return b"".join(event + END for event in data.split(END)[:-1] if self._passes(event))

    def _passes(self, event: bytes) -> bool:
        """Learn what the event says; false for a usage chunk that the client did not ask for."""
        if event.startswith(DONE):
            self.ended = True
            return True
        if event.startswith(ERROR_MARKS):
            self.failed = True
            return True
        chunk = _decoded(event.removeprefix(b"data: "))
        if chunk is None:
            return True
        self.fresh = self.fresh or bool(chunk.choices)
        self.usage = _usage_of(chunk) or self.usage
        return self._keep_usage or bool(chunk.choices) or chunk.usage is None


def _usage_of(chunk: _Chunk | None) -> Usage | None:
    if chunk is None or chunk.usage is None:
        return None
    details = chunk.usage.prompt_tokens_details or _Details()
    return Usage(chunk.usage.prompt_tokens, chunk.usage.completion_tokens, details.cached_tokens)


def _decoded(data: bytes) -> _Chunk | None:
    """None for what is not a chunk (a comment, another object): it is the client's to make sense of."""
    try:
        return _CHUNK.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
