"""One request: what arrives, and how far it has come."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tandem_operator.simulate.link import Flow
    from tandem_operator.simulate.memory import Hold
    from tandem_operator.simulate.worker import SimWorker


class Path(IntEnum):
    """Which way a request went in the end."""

    PAIR = 0  # prefill on one worker, decode on another
    ALONE = 1  # one worker did both
    REFUSED = 2  # longer than any worker's memory: never started


@dataclass(slots=True, eq=False)
class Request:
    """Times in seconds since the start, None = not yet. `hashes`: one a full block of the prompt, each over all before.

    Only the first four fields are the caller's.
    """

    arrived: float
    prompt: int
    output: int
    hashes: tuple[int, ...] = ()
    generated: int = 0  # tokens out, up to the last time that it left a batch
    computed: int = 0  # tokens of the present prefill that need no more work
    retries: int = 0  # a worker died under it, or a full memory threw it out
    path: Path = Path.PAIR
    first_at: float | None = None
    prefill_worker: SimWorker | None = None
    decode_worker: SimWorker | None = None
    source: Hold | None = None  # pages on the prefill worker
    ticket: Hold | None = None  # pages on the decode worker
    flow: Flow | None = None  # its KV under way
    joined: int = 0  # the batch's step count when it joined
    expected: int = 0  # prompt tokens that its router expects to be computed
    to_send: int = 0  # tokens whose KV the decode worker lacks
    last: int = 0  # ... of them those of the last chunk, which nothing hides
    version: int = 0  # how often it lost its way: an event of an older one is void

    @property
    def tokens(self) -> int:
        """Tokens whose KV a prefill has to make: the prompt, after a loss also what was generated."""
        return self.prompt + self.generated


@dataclass(frozen=True, slots=True)
class Finished:
    """A request's end, as the ledger keeps it; seconds."""

    arrived: float
    prompt: int
    output: int
    ttft_s: float | None  # arrival to first token; None: refused
    tpot_s: float | None  # mean gap after the first token; None for one token
    done_at: float
    path: Path
    retries: int
