"""One request on its way through the engine."""

from __future__ import annotations

import secrets
import time
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tandem_worker.engine.grammar import Grammar, GrammarError
from tandem_worker.engine.pages import page_chain
from tandem_worker.engine.request import LENGTH, STOP, PrefillSink, Sampling, Story, Token
from tandem_worker.engine.sampler import NO_TOKEN, Draw, Picked, penalises
from tandem_worker.engine.speculation import Lookup

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tandem_worker.engine.pages import Digest
    from tandem_worker.engine.reservations import Held


NOT_FINITE = (
    "error: the model's logits for this request are not finite (NaN or infinity): its weights or pages are damaged"
)


def no_pages() -> array[int]:
    """For pages' numbers as they go into a batch: in one piece, for a step that would gather them out of memory."""
    return array("q")


@dataclass(slots=True, eq=False)
class SequenceState:
    """A request's tokens, pages and progress. Either `on_token` (a job) or `sink` (a prefill half) is set."""

    id: str
    age: int
    tokens: list[int]  # prompt and outputs
    prompt_tokens: int
    sampling: Sampling
    seed: int
    chain: tuple[Digest, ...]
    on_token: Callable[[Token], None] | None = None
    sink: PrefillSink | None = None
    pages: array[int] = field(default_factory=no_pages)
    computed: int = 0  # leading tokens whose KV is in `pages`
    ticket: str = "none"
    first_page: int = 0  # prefill half: pages below are not sent
    sent: int = 0  # prefill half: pages below were sent or need not be
    shares: int = 1  # prefill half: parts that the decode worker's ranks split a page into
    preempted: bool = False
    handed_over: bool = False  # its prompt was computed elsewhere
    grammar: Grammar | None = None
    lookup: Lookup = field(default_factory=Lookup)
    drafted: int = 0  # leading tokens whose KV the draft model has in `pages`
    guess_at_most: int = 0  # next time; 0: as many as may be
    arrived_ns: int = field(default_factory=time.time_ns)
    started_ns: int = 0
    first_ns: int = 0
    penalised: bool = field(init=False)  # do its tokens so far matter to the next one?

    def __post_init__(self) -> None:
        self.penalised = penalises(self.sampling)

    @property
    def outputs(self) -> int:
        """Tokens that were sampled so far."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def left(self) -> int:
        """Tokens to compute before the next one can be sampled."""
        return len(self.tokens) - self.computed

    @property
    def started(self) -> bool:
        """Does it hold pages?"""
        return bool(self.pages)

    def draw(self, eos_ids: tuple[int, ...], guesses: Sequence[int] = ()) -> Draw:
        """How to pick its next token, or the one behind some guesses, should they be right."""
        sampling, index = self.sampling, len(self.tokens) - self.prompt_tokens + len(guesses)
        forbidden: tuple[int, ...] = ()
        if index < sampling.min_tokens:
            forbidden = sampling.stop_ids + (() if sampling.ignore_eos else eos_ids)
        tokens = [*self.tokens, *guesses] if self.penalised else ()
        allowed = None if self.grammar is None else self.grammar.allowed()
        return Draw(sampling, self.seed, index, tokens, forbidden, allowed)

    def story(self) -> Story:
        """For its trace, now that it has ended."""
        work = "prefill" if self.sink is not None else "decode" if self.handed_over else "job"
        return Story(
            work=work,
            trace=self.sampling.trace,
            prompt_tokens=self.prompt_tokens,
            outputs=self.outputs,
            arrived_ns=self.arrived_ns,
            started_ns=self.started_ns,
            first_ns=self.first_ns,
            ended_ns=time.time_ns(),
        )

    def needs_page(self, page_tokens: int) -> bool:
        """Does its next decode step write behind its last page?"""
        return (len(self.tokens) - 1) // page_tokens >= len(self.pages)

    def usable_chain(self, page_tokens: int) -> tuple[Digest, ...]:
        """Digests of the pages that the cache may serve: never the last token, whose logits are needed."""
        return self.chain[: (len(self.tokens) - 1) // page_tokens]

    def reset(self, page_tokens: int) -> None:
        """Its pages are gone: everything, outputs too, is to be computed again."""
        self.pages = no_pages()
        self.computed = self.drafted = 0
        self.preempted = True
        self.chain = page_chain(self.tokens, page_tokens)


def fresh(key: str, prompt: Sequence[int], sampling: Sampling, page_tokens: int) -> SequenceState:
    """A request of which nothing is computed; who is told of its tokens is to be set."""
    return SequenceState(
        id=key,
        age=0,
        tokens=list(prompt),
        prompt_tokens=len(prompt),
        sampling=sampling,
        seed=settled_seed(sampling),
        chain=page_chain(prompt, page_tokens),
    )


def handed_over(key: str, age: int, held: Held, first: Token, on_token: Callable[[Token], None]) -> SequenceState:
    """A request whose prompt was computed elsewhere, and whose first token was sampled there."""
    return SequenceState(
        id=key,
        age=age,
        tokens=[*held.prompt, first.id],
        prompt_tokens=len(held.prompt),
        sampling=held.sampling,
        seed=settled_seed(held.sampling),
        chain=held.chain,
        on_token=on_token,
        pages=array("q", held.claim.pages),
        computed=len(held.prompt),
        handed_over=True,
    )


def settled_seed(sampling: Sampling) -> int:
    """The request's seed, or one that is drawn now and stays."""
    return secrets.randbits(63) if sampling.seed is None else sampling.seed


def accept(sequence: SequenceState, picked: Picked, eos_ids: tuple[int, ...], max_context: int) -> Token:
    """Append a sampled token and say whether it is the last. Broken logits are no token, and an end."""
    if picked.id == NO_TOKEN:
        return Token(NO_TOKEN, 0.0, (), NOT_FINITE)
    if sequence.grammar is not None:
        try:
            sequence.grammar.accept(picked.id)
        except GrammarError as error:
            return Token(NO_TOKEN, 0.0, (), f"error: {error}")
    if not sequence.first_ns:
        sequence.first_ns = time.time_ns()
    sequence.tokens.append(picked.id)
    return Token(picked.id, picked.logprob, picked.top, _finish(sequence, picked.id, eos_ids, max_context))


def _finish(sequence: SequenceState, token_id: int, eos_ids: tuple[int, ...], max_context: int) -> str | None:
    sampling = sequence.sampling
    # A grammar's end is an EOS, which ignore_eos cannot take away: nothing may follow it.
    ends = sequence.grammar is not None or not sampling.ignore_eos
    if token_id in sampling.stop_ids or (token_id in eos_ids and ends):
        return STOP
    if sequence.outputs >= sampling.max_tokens or len(sequence.tokens) >= max_context:
        return LENGTH
    return None
