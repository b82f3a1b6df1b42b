"""A token from a row of logits by chance: temperature, then top-k, top-p and min-p, in this order (transformers').

All rows at once, and yet a row's token depends on nothing but its own logits, its parameters and its point in [0, 1):
how many rows there are, and what they ask for, changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as fn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from tandem_worker.engine.request import Sampling

CANDIDATES = 1024  # sorted first; a row's whole vocabulary only when these are not enough for it


def draw_tokens(logits: Tensor, samplings: Sequence[Sampling], points: Sequence[float]) -> Tensor:
    """Ids, [rows] int64, by the inverse of the cumulated probabilities. logits: [rows, vocab], fp32."""
    device = logits.device
    heat = torch.tensor([one.temperature for one in samplings], dtype=torch.float64, device=device).unsqueeze(1)
    mass = torch.softmax((logits - logits.amax(dim=-1, keepdim=True)).double() / heat, dim=-1)
    at = torch.tensor(points, dtype=torch.float64, device=device).unsqueeze(1)
    limited = [is_limited(one) for one in samplings]
    if not any(limited):
        return _by_id(mass, at)
    ids = torch.empty(len(samplings), dtype=torch.int64, device=device)
    free_rows = torch.tensor([not one for one in limited], device=device)
    if bool(free_rows.any()):
        ids[free_rows] = _by_id(mass[free_rows], at[free_rows])
    bounds = torch.tensor([[one.top_k, one.top_p, one.min_p] for one in samplings], dtype=torch.float64, device=device)
    rows = ~free_rows
    ids[rows] = _limited(mass[rows], at[rows], bounds[rows])
    return ids


def is_limited(sampling: Sampling) -> bool:
    """Does it leave tokens out?"""
    return sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0


def _by_id(mass: Tensor, points: Tensor) -> Tensor:
    cumulated = torch.cumsum(mass, dim=-1)
    found = torch.searchsorted(cumulated, points * cumulated[:, -1:], right=True)
    return found.clamp(max=mass.shape[1] - 1).squeeze(1)


def _limited(mass: Tensor, points: Tensor, bounds: Tensor) -> Tensor:
    count = min(CANDIDATES, mass.shape[1])
    best, order = torch.topk(mass, count)
    ids = _by_rank(best, order, points, bounds)
    short = ~_holds_all(best, mass.shape[1], bounds)
    if bool(short.any()):
        everything, order = torch.sort(mass[short], dim=-1, descending=True, stable=True)
        ids[short] = _by_rank(everything, order, points[short], bounds[short])
    return ids


def _holds_all(best: Tensor, vocab: int, bounds: Tensor) -> Tensor:
    """Do the candidates [rows, count], best first, hold every token that the bounds leave? [rows] bool."""
    count = best.shape[1]
    if count == vocab:
        return torch.ones(len(best), dtype=torch.bool, device=best.device)
    top_k, top_p, min_p = bounds.unbind(1)
    by_rank = (top_k > 0) & (top_k <= count)
    by_mass = (top_k == 0) & (top_p < 1) & (torch.cumsum(best, dim=-1)[:, -1] >= top_p)
    return by_rank | by_mass | (best[:, -1] < min_p * best[:, 0])


def _by_rank(best: Tensor, order: Tensor, points: Tensor, bounds: Tensor) -> Tensor:
    """Each bound leaves a beginning of the ranks, so all three together do; at least the best token."""
    top_k, top_p, min_p = (one.unsqueeze(1) for one in bounds.unbind(1))
    width = best.shape[1]
    cumulated = torch.cumsum(best, dim=-1)
    before = fn.pad(cumulated[:, :-1], (1, 0))
    rank = torch.where(top_k > 0, top_k, width).clamp(max=width).long()
    # Top-p counts within what top-k has left; the whole distribution weighs 1.
    whole = torch.where(top_k > 0, cumulated.gather(1, rank - 1), 1.0)
    # The smallest set whose mass reaches top_p (Holtzman et al., ICLR'20); min-p: Nguyen et al., ICLR'25.
    kept = (before < top_p * whole) & (torch.arange(width, device=best.device) < rank) & (best >= min_p * best[:, :1])
    last = (kept.sum(dim=-1, keepdim=True) - 1).clamp(min=0)
    found = torch.searchsorted(cumulated, points * cumulated.gather(1, last), right=True)
    return order.gather(1, torch.minimum(found, last)).squeeze(1)
