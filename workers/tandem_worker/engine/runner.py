"""Carries out a step: the forward passes, sampling, and who is told what. Runs on the engine's thread only."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tandem_worker.engine.batch import decode_batch, prefill_batch
from tandem_worker.engine.sampler import pick_tokens
from tandem_worker.engine.sequence import accept

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tandem_worker.engine.model import LoadedModel
    from tandem_worker.engine.request import EngineSettings, Token
    from tandem_worker.engine.sampler import Picked
    from tandem_worker.engine.sequence import SequenceState
    from tandem_worker.engine.store import KvStore


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

    def __init__(self, model: LoadedModel, store: KvStore, settings: EngineSettings) -> None:
        self._model = model
        self._store = store
        self._settings = settings
        self._eos_ids = model.info.eos_ids
        self._window = model.decoder.config.traits.window
        self.work = Work()

    def decode(self, sequences: Sequence[SequenceState]) -> list[tuple[SequenceState, Token]]:
        """One more token for each."""
        start = time.perf_counter()
        masks = self._model.decoder.mask_dtype
        batch, ordered = decode_batch(sequences, self._settings.page_tokens, masks, self._window)
        logits = self._model.decoder.forward(batch, self._store.tensor)
        picked = pick_tokens(logits, [one.draw(self._eos_ids) for one in ordered])
        for one in ordered:
            one.computed = len(one.tokens)
        tokens = [(one, self._accept(one, token)) for one, token in zip(ordered, picked, strict=True)]
        self.work.decode_steps += 1
        self.work.decode_tokens += len(ordered)
        self.work.decode_busy_s += time.perf_counter() - start
        return tokens

    def prefill(self, pieces: Sequence[tuple[SequenceState, int]]) -> list[tuple[SequenceState, Token]]:
        """Compute the next tokens of each; the sampled token of those that are complete."""
        start = time.perf_counter()
        batch = prefill_batch(pieces, self._settings.page_tokens, self._model.decoder.mask_dtype, self._window)
        logits = self._model.decoder.forward(batch, self._store.tensor)
        for one, count in pieces:
            one.computed += count
        complete = [one for one, _ in pieces if not one.left]
        picked = pick_tokens(logits, [one.draw(self._eos_ids) for one in complete]) if complete else []
        tokens = [(one, self._accept(one, token)) for one, token in zip(complete, picked, strict=True)]
        self.work.prefill_tokens += sum(count for _, count in pieces)
        self.work.prefill_busy_s += time.perf_counter() - start
        return tokens

    def push(self, one: SequenceState, *, prompt_done: bool) -> None:
        """Hand a prefill half's finished pages to its sink, at most a chunk's worth a call."""
        if one.sink is None:
            return
        done = len(one.pages) if prompt_done else one.computed // self._settings.page_tokens
        at_once = max(1, self._settings.chunk_tokens // self._settings.page_tokens)
        for first in range(one.sent, done, at_once):
            pages = one.pages[first : min(first + at_once, done)]
            one.sink.on_chunk(first, self._store.read(pages))
        one.sent = max(one.sent, done)

    def _accept(self, one: SequenceState, picked: Picked) -> Token:
        return accept(one, picked, self._eos_ids, self._settings.max_context)
