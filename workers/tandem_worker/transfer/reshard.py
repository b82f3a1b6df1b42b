"""Which rank of a prefill worker sends which KV heads to which rank of a decode worker, where their TP differs. Pure.

With `ranks` up to `kv_heads` each rank holds kv_heads / ranks heads of its own; with more, each holds one head and
ranks / kv_heads of them hold the same one (as in Megatron-LM's and vLLM's grouped-query attention).
A page travels as `shares`, one for each run of heads that a decode rank holds: what several ranks hold goes once, and
the decode worker copies it. So the decode ranks are `shares_of(ranks)` here, never more than KV heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True, slots=True)
class Part:
    """`heads` neighbouring heads: from `source_head` of a prefill rank's pages to `target_head` of a decode rank's."""

    source_rank: int
    source_head: int
    target_rank: int
    target_head: int
    heads: int


def heads_of(rank: int, ranks: int, kv_heads: int) -> range:
    """The heads of the model that this rank's pages hold, in their order there. Raises ValueError for odd shares."""
    if ranks <= kv_heads:
        share, rest = divmod(kv_heads, ranks)
        first = rank * share
    else:
        share, rest = 1, ranks % kv_heads
        first = rank * kv_heads // ranks
    if rest:
        raise ValueError(f"{kv_heads} KV heads cannot be shared or replicated evenly over {ranks} ranks")
    return range(first, first + share)


def shares_of(ranks: int, kv_heads: int) -> int:
    """Into how many different parts these ranks split a page."""
    return min(ranks, kv_heads)


def holder_of(share: int, ranks: int, shares: int) -> int:
    """The first of the ranks that hold this share."""
    return share * ranks // shares


def reshard(kv_heads: int, prefill_ranks: int, decode_ranks: int) -> tuple[Part, ...]:
    """All parts of one page, in the order of the decode ranks; each rank's heads arrive exactly once.

    Raises ValueError where either side cannot hold the heads evenly.
    """
    return tuple(
        part for target in range(decode_ranks) for part in _parts_of(target, kv_heads, prefill_ranks, decode_ranks)
    )


def _parts_of(target: int, kv_heads: int, prefill_ranks: int, decode_ranks: int) -> list[Part]:
    wanted = heads_of(target, decode_ranks, kv_heads)
    sources = [_source_of(head, target, kv_heads, prefill_ranks) for head in wanted]
    parts: list[Part] = []
    at = 0
    for source, run in groupby(sources):
        count = len(list(run))
        first = wanted[at] - heads_of(source, prefill_ranks, kv_heads).start
        parts.append(Part(source, first, target, at, count))
        at += count
    return parts


def _source_of(head: int, target: int, kv_heads: int, prefill_ranks: int) -> int:
    """The prefill rank that sends the head; where several hold it they take turns: all links carry something."""
    copies = max(prefill_ranks // kv_heads, 1)
    first = head * prefill_ranks // kv_heads
    return first + target % copies
