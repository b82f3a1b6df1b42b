"""One choice's tokens on their way from the engine (or the transfer) to the response, and all choices of a request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tandem_worker.server.errors import Problem, bad_pair, problem_of

if TYPE_CHECKING:
    from tandem_worker.engine import Token
    from tandem_worker.transfer.pull import Failure


class JobFailedError(Exception):
    """No token follows; `problem` says why, for the client."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


@dataclass(slots=True)
class Job:
    """A transfer's `Listener`, and one choice's source. All on the event loop.

    Tokens that a slow reader leaves behind wait here: at most `max_tokens` of a request, until its write times out.
    """

    id: str
    path: str  # "disaggregated" or "local"
    page_tokens: int
    stop: Callable[[str], None]  # cancels whatever has this id; idempotent
    news: asyncio.Event  # set when something came; all jobs of a request share it
    prefill_worker: str = ""
    cached_tokens: int = 0
    kv_bytes: int = 0
    tokens: list[Token] = field(default_factory=list)  # that were not taken yet
    problem: Problem | None = None

    def on_granted(self, first_page: int) -> None:
        """See Listener."""
        self.cached_tokens = first_page * self.page_tokens

    def on_pages(self, byte_count: int) -> None:
        """See Listener."""
        self.kv_bytes += byte_count

    def on_token(self, token: Token) -> None:
        """See Listener. An engine's failure comes as a token that is none."""
        if token.finish is not None and token.finish.startswith("error"):
            self.problem = bad_pair(token.finish)
        else:
            self.tokens.append(token)
        self.news.set()

    def on_failed(self, failure: Failure) -> None:
        """See Listener."""
        self.problem = problem_of(failure)
        self.news.set()

    def cancel(self) -> None:
        """Give everything back that the request still holds, here and at its prefill worker."""
        self.stop(self.id)


class Jobs:
    """The jobs of one request, by their choices' numbers."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self.by_choice: dict[int, Job] = {}

    @property
    def first(self) -> Job:
        """The job that speaks for the request."""
        return self.by_choice[0]

    async def take(self, within_s: float) -> list[tuple[int, list[Token]]]:
        """What came since the last call, by choice; at least one token. Raises JobFailedError, also after silence."""
        try:
            async with asyncio.timeout(within_s):
                await self.news.wait()
        except TimeoutError:
            raise JobFailedError(bad_pair(f"no token came within {within_s:.0f} s")) from None
        self.news.clear()
        taken: list[tuple[int, list[Token]]] = []
        for number, job in self.by_choice.items():
            if job.tokens:
                taken.append((number, job.tokens))
                job.tokens = []
        problem = next((job.problem for job in self.by_choice.values() if job.problem is not None), None)
        if taken:
            if problem is not None:
                self.news.set()  # after the tokens that came before it
            return taken
        raise JobFailedError(problem or bad_pair("the request ended without a token"))

    def cancel(self) -> None:
        """Whatever still runs."""
        for job in self.by_choice.values():
            job.cancel()
