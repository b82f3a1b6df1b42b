"""A small model that guesses for the large one. Its KV lies in pages of the same numbers, in a tensor of its own."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tandem_worker.engine.batch import decode_batch, prefill_batch
from tandem_worker.engine.request import ModelLoadError
from tandem_worker.engine.sampler import NO_TOKEN, pick_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from tandem_worker.engine.model import LoadedModel
    from tandem_worker.engine.request import EngineSettings, ModelInfo
    from tandem_worker.engine.sequence import SequenceState

LOG = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class View:
    """A sequence as the draft model sees it: with the guesses so far, and what it has computed itself."""

    one: SequenceState
    tokens: list[int]
    pages: Sequence[int]
    computed: int
    wanted: int

    @property
    def guesses(self) -> list[int]:
        """Beyond the sequence's own tokens."""
        return self.tokens[len(self.one.tokens) :]


class DraftModel:
    """A `Proposer`. Shared pages are written again by whoever comes next: with the same values, so nobody notices."""

    def __init__(self, draft: LoadedModel, target: ModelInfo, settings: EngineSettings, pages: int) -> None:
        """Raises ModelLoadError where the two models' tokens differ."""
        info = draft.info
        if info.vocab != target.vocab:
            raise ModelLoadError(
                f"the draft model {info.name} has {info.vocab} tokens, the model {target.vocab}: "
                f"--draft-model must be of the same tokenizer"
            )
        self._decoder = draft.decoder
        self._page_tokens = settings.page_tokens
        self._chunk_tokens = settings.chunk_tokens
        self._eos_ids = target.eos_ids
        shape = (pages, info.layers, 2, settings.page_tokens, info.kv_heads, info.head_dim)
        self._kv = torch.zeros(shape, dtype=draft.decoder.dtype, device=draft.decoder.device)
        LOG.info("the draft model's KV takes another %d MiB", self._kv.nbytes // 2**20)

    def propose(self, wanted: Sequence[tuple[SequenceState, int]]) -> list[list[int]]:
        """See Proposer. A prompt is read at most a chunk a step, so that nobody waits longer than for a prefill's."""
        views = [View(one, list(one.tokens), one.pages, min(one.drafted, one.computed), count) for one, count in wanted]
        ready = self._catch_up(views)
        while ready:
            ready = self._step(ready)
        for view in views:
            view.one.drafted = view.computed
        return [view.guesses for view in views]

    def _catch_up(self, views: list[View]) -> list[View]:
        """Read what is new; those that have read everything, with their first guess, and want more."""
        left, pieces = self._chunk_tokens, []
        for view in views:
            count = min(len(view.tokens) - view.computed, left)
            if count:
                pieces.append((view, count))
                left -= count
        if not pieces:
            return []
        batch = prefill_batch(pieces, self._page_tokens, self._decoder.mask_dtype, self._decoder.config.traits.window)
        logits = self._decoder.forward(batch, self._kv)
        for view, count in pieces:
            view.computed += count
        return self._guess([view for view, _ in pieces if view.computed == len(view.tokens)], logits)

    def _step(self, views: list[View]) -> list[View]:
        """One more guess each; those that want yet another."""
        window = self._decoder.config.traits.window
        batch, ordered = decode_batch(views, self._page_tokens, self._decoder.mask_dtype, window)
        logits = self._decoder.forward(batch, self._kv)
        for view in ordered:
            view.computed += 1
        return self._guess(ordered, logits)

    def _guess(self, views: list[View], logits: Tensor) -> list[View]:
        draws = [view.one.draw(self._eos_ids, view.guesses) for view in views]
        going_on = []
        for view, picked in zip(views, pick_tokens(logits, draws) if views else [], strict=True):
            if picked.id == NO_TOKEN:
                continue
            view.tokens.append(picked.id)
            if len(view.guesses) < view.wanted:
                going_on.append(view)
        return going_on
