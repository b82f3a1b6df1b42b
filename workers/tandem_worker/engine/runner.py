"""Carries out a step: the forward passes, sampling, and who is told what. Runs on the engine's thread only."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from tandem_worker.engine.batch import prefill_batch, step_batch
from tandem_worker.engine.draft import DraftModel
from tandem_worker.engine.graphs import DecodeGraphs, Shape
from tandem_worker.engine.sampler import NO_TOKEN, pick_tokens
from tandem_worker.engine.sequence import accept
from tandem_worker.engine.speculation import PromptLookup, Speculation, Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from tandem_worker.engine.decoder import Batch
    from tandem_worker.engine.lending import Loan
    from tandem_worker.engine.model import LoadedModel
    from tandem_worker.engine.request import EngineSettings, Token
    from tandem_worker.engine.sampler import Picked
    from tandem_worker.engine.sequence import SequenceState
    from tandem_worker.engine.store import KvStore


def make_graphs(model: LoadedModel, store: KvStore, settings: EngineSettings) -> DecodeGraphs | None:
    """On CUDA alone; ranks say each batch to each other, and two kinds of mask are none of a graph's."""
    decoder = model.decoder
    if settings.device != "cuda" or model.leader is not None or decoder.config.traits.window is not None:
        return None
    most = Shape(settings.max_batch, -(-settings.max_context // settings.page_tokens))
    return DecodeGraphs(decoder, store.tensor, store.pages, most)


@dataclass(slots=True)
class Work:
    """What was computed since the start; seconds by `time.perf_counter`."""

    prefill_tokens: int = 0
    prefill_busy_s: float = 0.0
    decode_steps: int = 0
    decode_busy_s: float = 0.0
    decode_tokens: int = 0


class Runner:
    """The model over the KV store."""

    def __init__(
        self, model: LoadedModel, store: KvStore, settings: EngineSettings, draft: LoadedModel | None = None
    ) -> None:
        self._model = model
        self._store = store
        self._settings = settings
        self._eos_ids = model.info.eos_ids
        self._window = model.decoder.config.traits.window
        self._graphs = make_graphs(model, store, settings)
        self.work = Work()
        self._speculation: Speculation | None = None
        if settings.speculate:
            proposer = PromptLookup() if draft is None else DraftModel(draft, model.info, settings, store.pages)
            self._speculation = Speculation(proposer, settings.speculate, settings.page_tokens, settings.max_context)

    @property
    def tally(self) -> Tally:
        """What became of guesses."""
        return Tally() if self._speculation is None else self._speculation.tally

    def decode(self, sequences: Sequence[SequenceState]) -> list[tuple[SequenceState, Token]]:
        """One more token for each, or several where guesses were right, in their order."""
        start = time.perf_counter()
        guesses = {} if self._speculation is None else self._speculation.guesses(sequences)
        size, masks = self._settings.page_tokens, self._model.decoder.mask_dtype
        batch, ordered = step_batch(sequences, guesses, size, masks, self._window)
        logits = self._forward(batch)
        tokens = self._judged(logits, ordered, guesses) if guesses else self._picked(logits, ordered)
        self.work.decode_steps += 1
        self.work.decode_tokens += len(ordered)
        self.work.decode_busy_s += time.perf_counter() - start
        return tokens

    def _picked(self, logits: Tensor, sequences: Sequence[SequenceState]) -> list[tuple[SequenceState, Token]]:
        """The next token of each."""
        picked = pick_tokens(logits, [one.draw(self._eos_ids) for one in sequences])
        for one in sequences:
            one.computed = len(one.tokens)
        return [(one, self._accept(one, pick)) for one, pick in zip(sequences, picked, strict=True)]

    def _judged(
        self, logits: Tensor, sequences: Sequence[SequenceState], guesses: Mapping[SequenceState, list[int]]
    ) -> list[tuple[SequenceState, Token]]:
        """The next tokens of each, as far as its guesses go and are right."""
        guessed = [(one, guesses.get(one, [])) for one in sequences]
        draws = [one.draw(self._eos_ids, guess[:place]) for one, guess in guessed for place in range(len(guess) + 1)]
        picked = iter(pick_tokens(logits, draws))
        return [
            (one, token)
            for one, guess in guessed
            for token in self._take(one, guess, list(islice(picked, len(guess) + 1)))
        ]

    def _take(self, one: SequenceState, guess: list[int], picked: list[Picked]) -> list[Token]:
        """The tokens up to the first one that was guessed wrong, which is right itself."""
        tokens: list[Token] = []
        for place, pick in enumerate(picked):
            if place and pick.id == NO_TOKEN:
                break  # the next step meets it again, as its first token
            one.computed = len(one.tokens)
            tokens.append(self._accept(one, pick))
            if tokens[-1].finish is not None or place == len(guess) or pick.id != guess[place]:
                break
        if guess and self._speculation is not None:
            self._speculation.judged(one, len(guess), len(tokens) - 1)
        return tokens

    def _forward(self, batch: Batch) -> Tensor:
        if self._model.leader is not None:
            self._model.leader.run(batch)
        if self._graphs is not None and (logits := self._graphs.run(batch)) is not None:
            return logits
        return self._model.decoder.forward(batch, self._store.tensor)

    def rest(self) -> None:
        """Nothing is to be computed: other ranks, if any, hear that this one lives."""
        if self._model.leader is not None:
            self._model.leader.beat()

    def stop(self) -> None:
        """Nothing will be computed any more."""
        if self._model.leader is not None:
            self._model.leader.stop()

    def prefill(self, pieces: Sequence[tuple[SequenceState, int]]) -> list[tuple[SequenceState, Token]]:
        """Compute the next tokens of each; the sampled token of those that are complete."""
        start = time.perf_counter()
        batch = prefill_batch(pieces, self._settings.page_tokens, self._model.decoder.mask_dtype, self._window)
        logits = self._forward(batch)
        for one, count in pieces:
            one.computed += count
        complete = [one for one, _ in pieces if not one.left]
        picked = pick_tokens(logits, [one.draw(self._eos_ids) for one in complete]) if complete else []
        tokens = [(one, self._accept(one, token)) for one, token in zip(complete, picked, strict=True)]
        self.work.prefill_tokens += sum(count for _, count in pieces)
        self.work.prefill_busy_s += time.perf_counter() - start
        return tokens

    def push(self, one: SequenceState, lend: Callable[[Sequence[int], int], Loan], *, prompt_done: bool) -> None:
        """Lend a prefill half's finished pages to its sink, at most a chunk's worth a call."""
        if one.sink is None:
            return
        done = len(one.pages) if prompt_done else one.computed // self._settings.page_tokens
        at_once = max(1, self._settings.chunk_tokens // self._settings.page_tokens)
        for first in range(one.sent, done, at_once):
            pages = one.pages[first : min(first + at_once, done)].tolist()
            one.sink.on_chunk(first, lend(pages, one.shares))
        one.sent = max(one.sent, done)

    def _accept(self, one: SequenceState, picked: Picked) -> Token:
        return accept(one, picked, self._eos_ids, self._settings.max_context)
