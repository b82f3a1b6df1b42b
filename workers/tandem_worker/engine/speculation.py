"""Tokens guessed ahead of the model, which then judges several of them in one pass.

A guess is kept exactly when it is the token that the model's own draw gives at its place (`sampler.uniform`, by seed
and index). So what comes out is what would have come out without guesses, greedy or drawn: the distribution
is kept because every token is still one draw of the model's own. A guess t is kept with probability p(t), as rejection
sampling would (Leviathan et al., ICML'23, for a proposal that is certain); a draft model that draws with the same
numbers agrees more often still. Guided requests are not guessed for: their grammar would have to go back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tandem_worker.engine.sequence import SequenceState

GRAMS: Final = (4, 3, 2)  # trailing tokens that are looked up, the longest first


class Proposer(Protocol):
    """Who guesses."""

    def propose(self, wanted: Sequence[tuple[SequenceState, int]]) -> list[list[int]]:
        """At most so many tokens to follow each sequence; often none."""


@dataclass(slots=True)
class Lookup:
    """Where each short run of tokens was last seen in one sequence."""

    seen: dict[tuple[int, ...], int] = field(default_factory=dict)
    read: int = 0  # tokens whose runs are in `seen`: those that end before them

    def after(self, tokens: Sequence[int], count: int) -> list[int]:
        """What followed the last place that reads like the end of `tokens`, round and round where it runs into it."""
        for end in range(self.read, len(tokens)):
            for gram in GRAMS:
                if end >= gram:
                    self.seen[tuple(tokens[end - gram : end])] = end
        self.read = len(tokens)
        for gram in GRAMS:
            if (at := self.seen.get(tuple(tokens[-gram:]))) is not None:
                period = len(tokens) - at
                return [tokens[at + step % period] for step in range(count)]
        return []


class PromptLookup:
    """Guesses what followed the same words before: in the prompt (quotes, code, summaries), or in the output itself."""

    def propose(self, wanted: Sequence[tuple[SequenceState, int]]) -> list[list[int]]:
        """See Proposer."""
        return [one.lookup.after(one.tokens, count) for one, count in wanted]


@dataclass(slots=True)
class Tally:
    """What became of the guesses since the start."""

    proposed: int = 0
    kept: int = 0


class Speculation:
    """Guesses within what a sequence may still say and has pages for; fewer where they were wrong."""

    def __init__(self, proposer: Proposer, tokens: int, page_tokens: int, max_context: int) -> None:
        self._proposer = proposer
        self._tokens = tokens
        self._page_tokens = page_tokens
        self._max_context = max_context
        self.tally = Tally()

    def guesses(self, sequences: Sequence[SequenceState]) -> dict[SequenceState, list[int]]:
        """By sequence, for those that have any."""
        wanted = [(one, count) for one in sequences if (count := self._room(one)) > 0]
        found = self._proposer.propose(wanted)
        return {one: guess for (one, _), guess in zip(wanted, found, strict=True) if guess}

    def judged(self, one: SequenceState, proposed: int, kept: int) -> None:
        """Of so many guesses so many were right."""
        one.guess_at_most = min(2 * proposed, self._tokens) if kept == proposed else kept + 1
        self.tally.proposed += proposed
        self.tally.kept += kept

    def _room(self, one: SequenceState) -> int:
        if one.grammar is not None:
            return 0
        to_say = min(one.sampling.max_tokens - one.outputs, self._max_context - len(one.tokens))
        pages = len(one.pages) * self._page_tokens - len(one.tokens)
        return min(one.guess_at_most or self._tokens, to_say - 1, pages)
