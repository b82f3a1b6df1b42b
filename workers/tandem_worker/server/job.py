"""One request's tokens on their way from the engine (or the transfer) to its response."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tandem_worker.server.errors import Problem, bad_pair, problem_of

if TYPE_CHECKING:
    from tandem_worker.engine import Token
    from tandem_worker.transfer.decode_side import Failure


class JobFailedError(Exception):
    """No token follows; `problem` says why, for the client."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


@dataclass(slots=True)
class Job:
    """A transfer's `Listener`, and the response's source. All on the event loop.

    Tokens that a slow reader leaves behind wait here: at most `max_tokens` of a request, until its write times out.
    """

    id: str
    path: str  # "disaggregated" or "local"
    page_tokens: int
    stop: Callable[[str], None]  # cancels whatever has this id; idempotent
    prefill_worker: str = ""
    cached_tokens: int = 0
    kv_bytes: int = 0
    _tokens: list[Token] = field(default_factory=list)
    _problem: Problem | None = None
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def on_granted(self, first_page: int) -> None:
        """See Listener."""
        self.cached_tokens = first_page * self.page_tokens

    def on_pages(self, byte_count: int) -> None:
        """See Listener."""
        self.kv_bytes += byte_count

    def on_token(self, token: Token) -> None:
        """See Listener. An engine's failure comes as a token that is none."""
        if token.finish is not None and token.finish.startswith("error"):
            self._problem = bad_pair(token.finish)
        else:
            self._tokens.append(token)
        self._news.set()

    def on_failed(self, failure: Failure) -> None:
        """See Listener."""
        self._problem = problem_of(failure)
        self._news.set()

    async def take(self, within_s: float) -> list[Token]:
        """What came since the last call, at least one. Raises JobFailedError, also after `within_s` of silence."""
        try:
            async with asyncio.timeout(within_s):
                await self._news.wait()
        except TimeoutError:
            raise JobFailedError(bad_pair(f"no token came within {within_s:.0f} s")) from None
        self._news.clear()
        tokens, self._tokens = self._tokens, []
        if tokens:
            if self._problem is not None:
                self._news.set()  # after the tokens that came before it
            return tokens
        raise JobFailedError(self._problem or bad_pair("the request ended without a token"))

    def cancel(self) -> None:
        """Give everything back that the request still holds, here and at its prefill worker."""
        self.stop(self.id)
