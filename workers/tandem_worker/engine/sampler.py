"""From logits to tokens. Greedy, or temperature and top-p by a counter-based draw: same seed, same tokens."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tandem_worker.engine.request import InvalidRequestError, Sampling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

MAX_TOP_LOGPROBS = 20
MAX_STOP_IDS = 64
TOP_P_CANDIDATES = 1024  # sorted first; the whole vocabulary only when these do not hold `top_p` of the mass


@dataclass(frozen=True, slots=True)
class Draw:
    """How to pick the token at `index` (0 = first output) of one sequence; `seed` is settled by now."""

    sampling: Sampling
    seed: int
    index: int


@dataclass(frozen=True, slots=True)
class Picked:
    """A token with natural-log probabilities under the model's own distribution."""

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def check_sampling(sampling: Sampling) -> None:
    """Raises InvalidRequestError that names the value and its range."""
    if sampling.max_tokens < 1:
        raise InvalidRequestError(f"max_tokens is {sampling.max_tokens}; it must be at least 1")
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        raise InvalidRequestError(f"temperature is {sampling.temperature}; it must be 0 or more")
    if not 0 < sampling.top_p <= 1:
        raise InvalidRequestError(f"top_p is {sampling.top_p}; it must be above 0 and at most 1")
    if not 0 <= sampling.top_logprobs <= MAX_TOP_LOGPROBS:
        raise InvalidRequestError(f"top_logprobs is {sampling.top_logprobs}; it must be 0 to {MAX_TOP_LOGPROBS}")
    if len(sampling.stop_ids) > MAX_STOP_IDS:
        raise InvalidRequestError(f"{len(sampling.stop_ids)} stop ids were given; at most {MAX_STOP_IDS} are served")


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1) that depends on nothing else: not on the batch, not on which worker draws it."""
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53


def pick_tokens(logits: Tensor, draws: Sequence[Draw]) -> list[Picked]:
    """One token for each row of `logits` [rows, vocab]."""
    logits = logits.float()
    totals = torch.logsumexp(logits, dim=-1)
    greedy = torch.argmax(logits, dim=-1)
    ids = [
        int(greedy[row]) if draw.sampling.temperature == 0 else draw_token(logits[row], draw)
        for row, draw in enumerate(draws)
    ]
    chosen = logits.gather(1, torch.tensor(ids).unsqueeze(1)).squeeze(1) - totals
    logprobs = chosen.tolist()
    return [
        Picked(ids[row], logprobs[row], _top(logits[row], float(totals[row]), draw.sampling.top_logprobs))
        for row, draw in enumerate(draws)
    ]


def draw_token(logits: Tensor, draw: Draw) -> int:
    """A token of [vocab] logits by the inverse of the cumulated probabilities of the top-p set, best first."""
    probabilities = torch.softmax((logits - logits.max()).double() / draw.sampling.temperature, dim=-1)
    point = uniform(draw.seed, draw.index)
    if draw.sampling.top_p == 1:
        cumulated = torch.cumsum(probabilities, dim=-1)
        return _invert(cumulated, point * float(cumulated[-1]))
    mass, order = torch.topk(probabilities, min(TOP_P_CANDIDATES, len(probabilities)))
    if float(mass.sum()) < draw.sampling.top_p:
        mass, order = torch.sort(probabilities, descending=True)
    cumulated = torch.cumsum(mass, dim=-1)
    # The smallest set whose mass reaches top_p (Holtzman et al., ICLR'20); at least the best token.
    last = min(int(torch.searchsorted(cumulated, draw.sampling.top_p)), len(cumulated) - 1)
    return int(order[_invert(cumulated[: last + 1], point * float(cumulated[last]))])


def _invert(cumulated: Tensor, point: float) -> int:
    return min(int(torch.searchsorted(cumulated, point, right=True)), len(cumulated) - 1)


def _top(logits: Tensor, total: float, count: int) -> tuple[tuple[int, float], ...]:
    if not count:
        return ()
    values, ids = torch.topk(logits, count)
    return tuple(zip(ids.tolist(), (values - total).tolist(), strict=True))
