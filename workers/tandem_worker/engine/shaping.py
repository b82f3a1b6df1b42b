"""What a request changes about its logits before a token is picked: bias, penalties, tokens that may not come.

All in place on rows that are copies: log-probabilities are of the model's own logits. The token lists of all rows go
through each step together, so that the number of tensor calls does not depend on the number of rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from tandem_worker.engine.sampler import Draw

NEVER = float("-inf")


def shape_logits(logits: Tensor, draws: Sequence[Draw]) -> None:
    """Change `logits` [rows, vocab], contiguous fp32, as each row's request asks."""
    _add_bias(logits, draws)
    _penalise_repetition(logits, draws)
    _penalise_outputs(logits, draws)
    _forbid(logits, draws)


def _add_bias(logits: Tensor, draws: Sequence[Draw]) -> None:
    keys = [row * logits.shape[1] + at for row, draw in enumerate(draws) for at, _ in draw.sampling.logit_bias]
    if keys:
        values = torch.tensor([value for draw in draws for _, value in draw.sampling.logit_bias], device=logits.device)
        logits.view(-1).index_add_(0, torch.tensor(keys, device=logits.device), values)


def _penalise_repetition(logits: Tensor, draws: Sequence[Draw]) -> None:
    """Keskar et al., 2019 (CTRL), section 4.1, over prompt and outputs: a positive logit divided, a negative times."""
    seen = [draw.tokens if draw.sampling.repetition_penalty != 1 else () for draw in draws]
    if (keys := _keys(seen, logits)) is None:
        return
    keys = torch.unique(keys)
    by_row = torch.tensor([draw.sampling.repetition_penalty for draw in draws], device=logits.device)
    penalty = by_row[keys // logits.shape[1]]
    flat = logits.view(-1)
    values = flat[keys]
    flat[keys] = torch.where(values > 0, values / penalty, values * penalty)


def _penalise_outputs(logits: Tensor, draws: Sequence[Draw]) -> None:
    """OpenAI's: -= frequency x (times it was said) + presence, over the outputs alone."""
    said = [
        draw.tokens[len(draw.tokens) - draw.index :]
        if draw.sampling.frequency_penalty or draw.sampling.presence_penalty
        else ()
        for draw in draws
    ]
    if (keys := _keys(said, logits)) is None:
        return
    keys, times = torch.unique(keys, return_counts=True)
    frequency = torch.tensor([draw.sampling.frequency_penalty for draw in draws], device=logits.device)
    presence = torch.tensor([draw.sampling.presence_penalty for draw in draws], device=logits.device)
    row = keys // logits.shape[1]
    logits.view(-1)[keys] -= frequency[row] * times + presence[row]


def _forbid(logits: Tensor, draws: Sequence[Draw]) -> None:
    for row, draw in enumerate(draws):
        if draw.allowed is not None:
            logits[row].masked_fill_(~draw.allowed.to(logits.device), NEVER)
    keys = _keys([draw.forbidden for draw in draws], logits)
    if keys is not None:
        logits.view(-1)[keys] = NEVER


def _keys(ids: Sequence[Sequence[int]], logits: Tensor) -> Tensor | None:
    """Positions of each row's ids in the flattened logits; None where no row has any."""
    counts = [len(one) for one in ids]
    if not any(counts):
        return None
    flat = torch.tensor([at for one in ids for at in one], device=logits.device)
    owners = torch.arange(len(ids), device=logits.device)
    return torch.repeat_interleave(owners, torch.tensor(counts, device=logits.device)) * logits.shape[1] + flat
