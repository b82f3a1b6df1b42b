"""What a worker serves: its model and its place in the pair, and which way a request goes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

from tandem_worker.server.defaults import Defaults
from tandem_worker.server.errors import ApiError, bad_pair, bad_request, not_ready, too_busy
from tandem_worker.server.job import Job
from tandem_worker.server.stream import Readers
from tandem_worker.tracing import OFF, Tracing
from tandem_worker.transfer.peers import PeerError, parse_address
from tandem_worker.transfer.ticket import State

if TYPE_CHECKING:
    from tandem_worker.engine import Engine, Sampling, Tokenizer
    from tandem_worker.metrics import Metrics
    from tandem_worker.transfer.node import Node

PREFILL_HEADER: Final = "x-tandem-prefill"
PREFILL_NAME_HEADER: Final = "x-tandem-prefill-name"
REQUEST_HEADER: Final = "x-tandem-request-id"
ID_AT_MOST: Final = 128


class Phase(StrEnum):
    """What a worker can do now; only READY is ready."""

    LOADING = "loading its model"
    READY = "ready"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Loaded:
    """All that exists once the model is loaded."""

    engine: Engine
    tokenizer: Tokenizer
    node: Node
    post: Callable[..., None]
    own_address: tuple[str, int]  # the kv port of this worker
    max_context: int
    page_tokens: int
    max_queue: int
    defaults: Defaults


class Service:
    """One worker as its HTTP side sees it."""

    def __init__(
        self, served_name: str, worker: str, metrics: Metrics, first_token_s: float, tracing: Tracing = OFF
    ) -> None:
        self.served_name = served_name
        self.worker = worker
        self.metrics = metrics
        self.first_token_s = first_token_s
        self.tracing = tracing
        self.started = int(time.time())  # Unix seconds, for /v1/models
        self.phase = Phase.LOADING
        self.active = 0  # requests whose response is not finished
        self.readers = Readers()
        self._loaded: Loaded | None = None
        self._numbers = count(1)

    def become_ready(self, loaded: Loaded) -> None:
        """The model is there."""
        self._loaded = loaded
        if self.tracing.is_on:
            loaded.engine.trace(self.tracing.tell)
        loaded.engine.events.on_news = partial(loaded.post, self.readers.wake)
        if self.phase is Phase.LOADING:
            self.phase = Phase.READY

    @property
    def loaded(self) -> Loaded:
        """Raises ApiError (503) before the model is loaded. A draining worker still serves what reaches it."""
        if self._loaded is None:
            raise not_ready(self.phase.value)
        return self._loaded

    @property
    def busy(self) -> bool:
        """Is any request of this worker, or prefill for another one, under way?"""
        return self.active > 0 or (self._loaded is not None and self._loaded.node.pushing)

    async def start(
        self, prompt: Sequence[int], sampling: Sampling, headers: Mapping[str, str], news: asyncio.Event
    ) -> Job:
        """Begin a request by the way that its headers say; `news` is set when it has some.

        Raises ApiError, EngineError.
        """
        loaded = self.loaded
        job_id = self._job_id(headers.get(REQUEST_HEADER, ""))
        address = self._prefill_address(headers)
        cached = loaded.engine.match(prompt) * loaded.page_tokens
        # What misses a page or less is computed sooner than asked for.
        if address is None or address == loaded.own_address or len(prompt) - cached <= loaded.page_tokens:
            return self._start_local(job_id, prompt, sampling, min(cached, len(prompt) - 1), news)
        name = headers.get(PREFILL_NAME_HEADER, "")[:253]
        return await self._start_pair(job_id, prompt, sampling, address, name, news)

    def _start_local(
        self, job_id: str, prompt: Sequence[int], sampling: Sampling, cached: int, news: asyncio.Event
    ) -> Job:
        loaded = self.loaded
        job = Job(job_id, "local", loaded.page_tokens, loaded.engine.cancel, news, cached_tokens=cached)
        loaded.engine.submit(job_id, prompt, sampling, partial(loaded.post, job.on_token))
        return job

    async def _start_pair(
        self,
        job_id: str,
        prompt: Sequence[int],
        sampling: Sampling,
        address: tuple[str, int],
        name: str,
        news: asyncio.Event,
    ) -> Job:
        loaded = self.loaded
        decode = loaded.node.decode
        if decode.count(State.ASKED) >= loaded.max_queue:
            words = f"{loaded.max_queue} requests wait for their prefill already"
            raise ApiError(too_busy(words, loaded.engine.retry_after_s()))
        try:
            link = await loaded.node.peers.get(address)
            job = Job(job_id, "disaggregated", loaded.page_tokens, decode.cancel, news, name or link.peer.worker)
            decode.ask(link, job_id, prompt, sampling, job)
        except (PeerError, ConnectionError) as error:
            raise ApiError(bad_pair(str(error))) from error
        return job

    def _job_id(self, given: str) -> str:
        """Unique here even if a router says the same id twice: the first one may not have ended yet."""
        if len(given) > ID_AT_MOST or not given.isascii() or not all(c.isalnum() or c in "-_.:" for c in given):
            raise bad_request(
                f"{REQUEST_HEADER} must have at most {ID_AT_MOST} letters, digits and -_.:", REQUEST_HEADER
            )
        return f"{given or 'direct'}#{next(self._numbers)}"

    @staticmethod
    def _prefill_address(headers: Mapping[str, str]) -> tuple[str, int] | None:
        given = headers.get(PREFILL_HEADER)
        if not given:
            return None
        try:
            return parse_address(given)
        except ValueError as error:
            raise bad_request(f"{PREFILL_HEADER}: {error}", PREFILL_HEADER) from error
