"""What engines that only speak OpenAI's API have in common: their answers carry no word of ours."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tandem_router.engines.base import Usage, Verdict
from tandem_router.engines.tandem import TandemEngine, TandemStream
from tandem_router.errors import RefusedError
from tandem_router.placement import Pair

FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
ONE = (b"1", b"null")


class OpenAIEngine:
    """Its headers, verdicts and streams. The stream is OpenAI's own: see TandemStream."""

    works_alone = True

    def __init__(self) -> None:
        self._own = TandemEngine()

    def headers(self, pair: Pair, request_id: str) -> dict[str, str]:  # noqa: ARG002 the body says it
        """The request's id, as both engines read it: it shows in their logs."""
        return {"X-Request-Id": request_id}

    def verdict(self, status: int, headers: Mapping[str, str]) -> Verdict:  # noqa: ARG002
        """Nothing was computed yet, so a server's error is the pair's: another one may well serve. 429: full."""
        if status == 429:
            return Verdict.FULL
        return Verdict.ANOTHER_PAIR if status >= 500 else Verdict.PASS_ON

    def stream(self, *, keep_usage: bool) -> TandemStream:
        """See `Engine.stream`."""
        return self._own.stream(keep_usage=keep_usage)

    def usage(self, body: bytes) -> Usage | None:
        """The body's usage object."""
        return self._own.usage(body)


def several_answers(fields: Mapping[str, msgspec.Raw]) -> bool:
    """Does the request ask for more than one answer to a prompt?"""
    return any(bytes(fields[name]) not in ONE for name in ("n", "best_of") if name in fields)


def prompts_of(fields: Mapping[str, msgspec.Raw]) -> int | None:
    """How many prompts a request's `prompt` holds where it is a list of prompts; None: it is one prompt."""
    raw = bytes(fields.get("prompt", b""))
    if not raw.startswith(b"["):
        return None
    try:
        items = msgspec.json.decode(raw, type=list[msgspec.Raw])
    except msgspec.DecodeError as error:
        raise RefusedError(400, "prompt must be text, token ids, or a list of them.", "invalid_value") from error
    # A list of numbers is one prompt, by its token ids.
    return len(items) if items and bytes(items[0])[:1] in (b'"', b"[") else None
