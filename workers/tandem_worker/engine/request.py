"""What callers and the engine say to each other: requests, tokens, settings, refusals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from tandem_worker.engine.lending import Loan

STOP = "stop"
LENGTH = "length"


class EngineError(Exception):
    """A refusal of the engine; its text says what was wrong and what to do."""


class QueueFullError(EngineError):
    """`max_queue` requests wait already: try another worker, or in `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class PromptTooLongError(EngineError):
    """The prompt and one output token do not fit into `max_context`, or into the whole page pool."""


class InvalidRequestError(EngineError):
    """A request that no engine could serve: an empty prompt, an unknown token id, a bad sampling value."""


class ReservationError(EngineError):
    """The reservation is not there (ended, released) or the pages lie outside it."""


class ModelLoadError(EngineError):
    """The model cannot be served: one sentence that says what, where and what to do."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to pick tokens, and how soon. `temperature` 0 is greedy; `seed` None draws one; `stop_ids` end like an EOS.

    top_k 0 and min_p 0 leave nothing out. Presence and frequency penalties look at the outputs, the repetition
    penalty at the prompt too (1: none). logit_bias: (id, added to its logit). Neither EOS nor stop ids come before
    `min_tokens`. `grammar`: what the output must be, see grammar.py; "": anything. `priority`: small is urgent.
    `blocks`, `prompt_bytes`: an Origin (events.py), for the KV events of whoever computes it.
    `trace`: W3C's traceparent of the request, "" where nobody traces it.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    top_logprobs: int = 0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    grammar: str = ""
    priority: int = 0
    blocks: bytes = b""
    prompt_bytes: int = 0
    trace: str = ""


class Token(NamedTuple):
    """One sampled token.

    `logprob` and `top` ((id, logprob), best first) are natural logs of the model's own distribution (temperature 1).
    `finish` is None, or on the last token of a request "stop", "length" or "error: <words>". A stop token is emitted
    with finish="stop"; the server does not print it. After an error `id` is -1: it is no token.
    """

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    finish: str | None


@dataclass(frozen=True, slots=True)
class Story:
    """What an engine did for a traced request: its prefill half, its decode half, or the whole job.

    Times in nanoseconds of the wall clock, 0 where it did not come to that.
    """

    work: str
    trace: str
    prompt_tokens: int
    outputs: int
    arrived_ns: int
    started_ns: int
    first_ns: int
    ended_ns: int


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Sizes of one engine. `max_context` in tokens (prompt and output); `chunk_tokens` bounds a step's prefill."""

    dtype: str
    max_context: int
    page_tokens: int = 16
    kv_memory_mib: int = 512
    chunk_tokens: int = 256
    max_batch: int = 64
    max_queue: int = 256
    threads: int | None = None
    prefix_cache: bool = True
    speculate: int = 0  # tokens to guess ahead; 0: none
    tensor_parallel: int = 1  # ranks, each a process
    weights: str = ""  # "int8", or as `dtype` says
    kv: str = ""  # "int8" or "fp8", or as `dtype` says
    device: str = "cpu"  # or "cuda", see device.py
    shared_memory: bool = False  # pages lie where other processes of the machine may be shown them


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model's sizes; `config_hash` is equal on two workers exactly when their KV pages mean the same."""

    name: str
    parameters: int
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    element_bytes: int
    eos_ids: tuple[int, ...]
    config_hash: str


@dataclass(frozen=True, slots=True)
class Reservation:
    """Pages for one prompt: `pages` in all, the first `have_pages` of them already hold their tokens' KV."""

    id: str
    have_pages: int
    pages: int


@dataclass(frozen=True, slots=True)
class Shortage:
    """No room now: `need` pages were asked for, `free` could be had. Nothing was taken."""

    need: int
    free: int


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A look at the engine. The last eleven are counters since its start; seconds are of `time.perf_counter`."""

    running: int
    waiting: int
    prefill_waiting_tokens: int
    kv_usage: float
    quarantined_pages: int
    prefix_queries: int
    prefix_hits: int
    prefill_tokens: int
    prefill_busy_s: float
    decode_steps: int
    decode_busy_s: float
    decode_tokens: int
    preemptions: int
    kv_events: int
    guesses: int
    guesses_kept: int


class PrefillSink(Protocol):
    """Where a prefill half goes. Called on the engine's thread: must return at once and not raise."""

    def on_head(self) -> None:
        """The request reached the head of the prefill queue; it is not computed before `admit_prefill`."""

    def on_chunk(self, first_page: int, pages: Loan) -> None:
        """Finished pages, lent: the callee ends the loan once nobody reads them any more.

        The prompt's last page may be partly filled; its remaining rows are undefined.
        """

    def on_first(self, token: Token) -> None:
        """The sampled first token; called before `on_chunk` of the last chunk."""

    def on_done(self) -> None:
        """Everything was handed over; nothing more is called."""

    def on_failed(self, reason: str) -> None:
        """The prefill ended without its end; nothing more is called."""
