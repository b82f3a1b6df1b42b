"""Prefix reuse in Mooncake's traces: plain counts and one formula (Mooncake, FAST'25)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tandem_operator.simulate.published.inputs import Prompt

BLOCK_TOKENS: Final = 512  # of the published traces
NODE_TOKENS: Final = 3_000_000  # KV cache of one node's DRAM in the paper's studies (section 5.3)
NODE_BLOCKS: Final = NODE_TOKENS // BLOCK_TOKENS  # 5,859


class BlockCache:
    """Least recently used blocks go first. `capacity` in blocks; None: unbounded."""

    def __init__(self, capacity: int | None = None) -> None:
        """Empty."""
        self._capacity = capacity
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def match(self, blocks: Sequence[int]) -> int:
        """How many of these blocks are here before the first that is not: KV depends on all tokens before it."""
        return sum(1 for _ in takewhile(self._blocks.__contains__, blocks))

    def put(self, blocks: Iterable[int]) -> None:
        """They are the newest now."""
        for block in blocks:
            self._blocks[block] = None
            self._blocks.move_to_end(block)
            if self._capacity is not None and len(self._blocks) > self._capacity:
                self._blocks.popitem(last=False)


def hit_share(prompts: Sequence[Prompt], capacity: int | None = None) -> float:
    """Share of all blocks that one cache for everyone would have had (Mooncake, section 4.2 and figure 9)."""
    cache, hits = BlockCache(capacity), 0
    for prompt in prompts:
        hits += cache.match(prompt.blocks)
        cache.put(prompt.blocks)
    return hits / sum(len(p.blocks) for p in prompts)


@dataclass(frozen=True, slots=True)
class Transformer:
    """A model in the paper's notation (table 1): layers, dimension, heads of Q over those of KV, bytes an element."""

    layers: int
    dimension: int
    query_groups: int
    element_bytes: int = 2

    def prefill_flops(self, tokens: float, cached: float = 0.0) -> float:
        """Equation 1, l·(a·n²·d + b·n·d²) with a = 4 and b = 22, less the part of the cached prefix."""
        attention = 4 * (tokens**2 - cached**2) * self.dimension
        return self.layers * (attention + 22 * (tokens - cached) * self.dimension**2)

    def kv_bytes(self, tokens: float) -> float:
        """p·l·(2·d/gqa)·s (section 3)."""
        return tokens * self.layers * 2 * self.dimension / self.query_groups * self.element_bytes


LLAMA_3_70B: Final = Transformer(layers=80, dimension=8192, query_groups=8)
LLAMA_3_70B_BYTES: Final = 2 * 70.6e9  # its model card's parameters at 16 bits
# What a decode worker of eight 80 GB devices holds beside the weights.
H100_BLOCKS: Final = int((8 * 80 * 2**30 - LLAMA_3_70B_BYTES) / LLAMA_3_70B.kv_bytes(BLOCK_TOKENS))


def break_even_bandwidth(model: Transformer, flops: float, prefix: int) -> float:
    """Bytes/s above which loading a prefix's KV beats computing it: equation 2, B/G > 2·d·s/(gqa·(a·p·d + b·d²)).

    flops: G, FLOP/s of the machine; prefix: p, tokens.
    """
    return model.kv_bytes(prefix) / model.prefill_flops(prefix) * flops


def saved_share(prompts: Sequence[Prompt], workers: int, capacity: int | None = None) -> float:
    """Share of the prompts' KV bytes that need not travel when decode workers keep pages; `capacity` in blocks each.

    A request goes to the worker that has most of its prefix among those that received at most a tenth more than the
    average: by prefix alone all would go to one worker, since every request of a trace may share its first block.
    """
    caches = [BlockCache(capacity) for _ in range(workers)]
    received = [0] * workers
    kept = total = 0
    for prompt in prompts:
        limit = 1.1 * total / workers
        found = {w: caches[w].match(prompt.blocks) for w in range(workers) if received[w] <= limit}
        best = min(found, key=lambda w: (-found[w], received[w]))
        kept += min(found[best] * BLOCK_TOKENS, prompt.tokens)
        received[best] += prompt.tokens
        total += prompt.tokens
        caches[best].put(prompt.blocks)
    return kept / total
