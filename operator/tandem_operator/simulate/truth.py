"""What the hidden hardware really costs, and how an engine cuts its work; the planner never sees either."""

from __future__ import annotations

from dataclasses import dataclass, field

from tandem_operator.plan.sparse import Sparse


@dataclass(frozen=True, slots=True)
class Truth:
    """The costs of one worker of a pool, in seconds.

    The form is plan.roofline's: a forward pass costs a base and so much a token; attention adds so much a pair of
    (query, key) in prefill, where n² stands for the causal half of all pairs, and so much a context token in decode.
    """

    prompt_token_s: float
    step_base_s: float
    step_slope_s: float  # by request in the batch
    prompt_base_s: float = 0.0  # once a prompt
    transfer_token_s: float = 0.0  # one token's KV over this worker's NIC alone; 0: no time at all
    prompt_pair_s: float = 0.0
    chunk_base_s: float = 0.0  # once a chunk: the weights are read again
    step_context_s: float = 0.0  # by token of context, over the whole batch
    transfer_base_s: float = 0.0  # from the last chunk to the first decode step, besides the bytes
    kv_tokens: int | None = None  # room of the KV cache; None: never full

    def step_s(self, batch: int, context: int = 0) -> float:
        """One decode step of `batch` requests that have `context` tokens together."""
        return self.step_base_s + self.step_slope_s * batch + self.step_context_s * context

    def chunk_s(self, before: int, tokens: int) -> float:
        """One chunk of a prompt of which `before` tokens are in the cache: the pairs telescope to n² over a prompt."""
        pairs = tokens * (2 * before + tokens)
        return self.chunk_base_s + self.prompt_token_s * tokens + self.prompt_pair_s * pairs


@dataclass(frozen=True, slots=True)
class SparseTruth(Truth):
    """The same for routed experts: a step reads the experts that its batch touches, and computes the chosen ones."""

    sparse: Sparse = field(default_factory=Sparse)

    def step_s(self, batch: int, context: int = 0) -> float:
        """One decode step of `batch` requests that have `context` tokens together."""
        experts = self.sparse.reading_s(batch) + self.sparse.computing_s(batch)
        return self.step_base_s + self.step_slope_s * batch + self.step_context_s * context + experts


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine's settings: tokens of a prefill chunk, of a KV page, and of a hashed block of the prefix cache."""

    chunk_tokens: int = 256
    page_tokens: int = 16
    block_tokens: int = 512

    def pages(self, tokens: int) -> int:
        """Pages that hold so many tokens."""
        return -(-tokens // self.page_tokens)
