"""From logits to tokens: greedy, or by a counter-based draw. Same seed, same tokens, whatever the batch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tandem_worker.engine.drawing import draw_tokens
from tandem_worker.engine.shaping import shape_logits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from tandem_worker.engine.request import Sampling

NO_TOKEN = -1  # the id of a row whose logits are no numbers


@dataclass(slots=True)  # not frozen: one for each token, and that would take six times as long
class Draw:
    """How to pick the token at `index` (0 = first output) of one sequence; `seed` is settled by now.

    `tokens`: prompt and the `index` outputs so far, where penalties ask for them; `forbidden`: ids that may not come
    yet; `allowed`: [vocab] bool of a grammar, None: everything.
    """

    sampling: Sampling
    seed: int
    index: int
    tokens: Sequence[int] = ()
    forbidden: tuple[int, ...] = ()
    allowed: Tensor | None = None

    @property
    def is_shaped(self) -> bool:
        """Does it change logits before it picks?"""
        return bool(self.forbidden) or self.allowed is not None or shapes(self.sampling)

    @property
    def is_plain(self) -> bool:
        """Is its token the best one of the model's own logits?"""
        return self.sampling.temperature == 0 and not self.is_shaped


@dataclass(slots=True)  # not frozen, as Draw
class Picked:
    """A token with natural-log probabilities under the model's own distribution; NO_TOKEN for broken logits."""

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def shapes(sampling: Sampling) -> bool:
    """Does every token of this request need its logits changed?"""
    return penalises(sampling) or bool(sampling.logit_bias)


def penalises(sampling: Sampling) -> bool:
    """Do the tokens so far matter to the next one?"""
    return bool(sampling.presence_penalty or sampling.frequency_penalty or sampling.repetition_penalty != 1)


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1) that depends on nothing else: not on the batch, not on which worker draws it."""
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53


def pick_tokens(logits: Tensor, draws: Sequence[Draw]) -> list[Picked]:
    """One token for each row of `logits` [rows, vocab]; NO_TOKEN where a row holds NaN or infinity."""
    logits = logits.float()
    totals = torch.logsumexp(logits, dim=-1)
    ids = torch.argmax(logits, dim=-1)
    if special := [row for row, draw in enumerate(draws) if not draw.is_plain]:
        ids[special] = _pick_special(logits[special], [draws[row] for row in special])
    logprobs = (logits.gather(1, ids.unsqueeze(1)).squeeze(1) - totals).tolist()
    sound = torch.isfinite(totals).tolist()
    tops = _tops(logits, totals, [draw.sampling.top_logprobs for draw in draws])
    return [
        Picked(at, logprobs[row], tops.get(row, ())) if sound[row] else Picked(NO_TOKEN, 0.0, ())
        for row, at in enumerate(ids.tolist())
    ]


def _pick_special(logits: Tensor, draws: list[Draw]) -> Tensor:
    """Ids of rows that are shaped, or drawn, or both. `logits` may be changed."""
    if shaped := [row for row, draw in enumerate(draws) if draw.is_shaped]:
        changed = logits[shaped]
        shape_logits(changed, [draws[row] for row in shaped])
        logits[shaped] = changed
    drawn = [row for row, draw in enumerate(draws) if draw.sampling.temperature > 0]
    if len(drawn) == len(draws):
        return _draw(logits, draws)
    ids = torch.argmax(logits, dim=-1)
    if drawn:
        ids[drawn] = _draw(logits[drawn], [draws[row] for row in drawn])
    return ids


def _draw(logits: Tensor, draws: list[Draw]) -> Tensor:
    return draw_tokens(logits, [one.sampling for one in draws], [uniform(one.seed, one.index) for one in draws])


def _tops(logits: Tensor, totals: Tensor, counts: list[int]) -> dict[int, tuple[tuple[int, float], ...]]:
    """The best tokens of the rows that show any, with their log-probabilities."""
    rows = [row for row, count in enumerate(counts) if count]
    if not rows:
        return {}
    values, ids = torch.topk(logits[rows], min(max(counts), logits.shape[1]))
    pairs = zip(ids.tolist(), (values - totals[rows].unsqueeze(1)).tolist(), strict=True)
    return {
        row: tuple(zip(at[: counts[row]], value[: counts[row]], strict=True))
        for row, (at, value) in zip(rows, pairs, strict=True)
    }
