"""Mooncake's prefill schedulers over a pool of nodes with prefix caches (Mooncake, arXiv 2407.00079, algorithm 1)."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tandem_operator.simulate.published.prefixes import BLOCK_TOKENS, LLAMA_3_70B, NODE_BLOCKS, BlockCache, Transformer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tandem_operator.simulate.published.inputs import Prompt

A800: Final = 312e12  # FLOP/s of one device at bfloat16 (table 1: G is 8 of them)
MFU: Final = 0.5  # share of it that a prefill reaches; the paper gives none
NIC: Final = 800e9 / 8  # bytes/s between nodes (table 1)
BALANCING: Final = 2.0  # kvcache_balancing_threshold: fetch where the best match is so many times the own one


@dataclass(frozen=True, slots=True)
class Hardware:
    """A prefill node."""

    model: Transformer = LLAMA_3_70B
    flops: float = 8 * A800 * MFU
    bandwidth: float = NIC

    def prefill_s(self, prompt: Prompt, blocks: int) -> float:
        """Seconds to compute a prompt of which so many blocks are cached; the last token is always computed."""
        cached = min(blocks * BLOCK_TOKENS, prompt.tokens - 1)
        return self.model.prefill_flops(prompt.tokens, cached) / self.flops

    def transfer_s(self, blocks: int) -> float:
        """Seconds to fetch so many blocks from another node."""
        return self.model.kv_bytes(blocks * BLOCK_TOKENS) / self.bandwidth


@dataclass(slots=True)
class Node:
    """A prefill node: FIFO, one prompt at a time."""

    cache: BlockCache
    free_at: float = 0.0

    def wait_s(self, now: float) -> float:
        """Until it could start another prompt."""
        return max(0.0, self.free_at - now)


@dataclass(frozen=True, slots=True)
class Choice:
    """Where a prompt is computed, with how many blocks there after `fetched` of them came from elsewhere."""

    node: int
    blocks: int
    fetched: int = 0


@dataclass(slots=True)
class Pool:
    """The nodes that a scheduler chooses from."""

    nodes: list[Node]
    hardware: Hardware
    rng: random.Random

    def ttft_s(self, prompt: Prompt, choice: Choice) -> float:
        """Transfer, queue and prefill, added (algorithm 1)."""
        hardware, node = self.hardware, self.nodes[choice.node]
        return hardware.transfer_s(choice.fetched) + node.wait_s(prompt.at) + hardware.prefill_s(prompt, choice.blocks)

    def matches(self, prompt: Prompt) -> list[int]:
        """Blocks of its prefix on each node."""
        return [node.cache.match(prompt.blocks) for node in self.nodes]


def at_random(pool: Pool, prompt: Prompt) -> Choice:
    """Any node."""
    node = pool.rng.randrange(len(pool.nodes))
    return Choice(node, pool.nodes[node].cache.match(prompt.blocks))


def longest_prefix(pool: Pool, prompt: Prompt) -> Choice:
    """The node with most of the prefix, whatever waits there; the first of equals."""
    matches = pool.matches(prompt)
    return Choice(matches.index(max(matches)), max(matches))


def load_balancing(pool: Pool, prompt: Prompt) -> Choice:
    """The node that is free first."""
    node = min(range(len(pool.nodes)), key=lambda n: pool.nodes[n].free_at)
    return Choice(node, pool.nodes[node].cache.match(prompt.blocks))


def cache_aware(pool: Pool, prompt: Prompt) -> Choice:
    """The node with the least queue and prefill, each with the prefix that it has itself."""
    choices = [Choice(node, blocks) for node, blocks in enumerate(pool.matches(prompt))]
    return min(choices, key=lambda c: pool.ttft_s(prompt, c))


def kvcache_centric(pool: Pool, prompt: Prompt) -> Choice:
    """Cache-aware, but a node whose prefix is far shorter than the best one may fetch the rest (algorithm 1)."""
    matches = pool.matches(prompt)
    best = max(matches)
    choices = [
        Choice(node, blocks) if best < BALANCING * blocks or not best else Choice(node, best, best - blocks)
        for node, blocks in enumerate(matches)
    ]
    return min(choices, key=lambda c: pool.ttft_s(prompt, c))


@dataclass(slots=True)
class Outcome:
    """What a study measured: seconds, and blocks that were found or fetched over all blocks."""

    ttft_s: list[float] = field(default_factory=list)
    prefill_s: list[float] = field(default_factory=list)
    hits: int = 0
    blocks: int = 0

    @property
    def hit_share(self) -> float:
        """Of all blocks."""
        return self.hits / self.blocks

    @property
    def mean_ttft_s(self) -> float:
        """Over all prompts."""
        return sum(self.ttft_s) / len(self.ttft_s)

    @property
    def mean_prefill_s(self) -> float:
        """Computation alone."""
        return sum(self.prefill_s) / len(self.prefill_s)


def serve(
    prompts: Sequence[Prompt],
    schedule: Callable[[Pool, Prompt], Choice],
    nodes: int,
    *,
    capacity: int | None = NODE_BLOCKS,
    shared: bool = False,
    speed: float = 1.0,
    hardware: Hardware | None = None,
) -> Outcome:
    """Every prompt's prefill, in the order of arrival.

    capacity: blocks a node keeps; shared: all nodes see one cache of all their capacities; speed: 2 plays the trace
    twice as fast.
    """
    whole = None if capacity is None else capacity * nodes
    one = BlockCache(whole)
    pool = Pool(
        [Node(one if shared else BlockCache(capacity)) for _ in range(nodes)], hardware or Hardware(), random.Random(0)
    )
    outcome = Outcome()
    for recorded in prompts:
        prompt = type(recorded)(recorded.at / speed, recorded.tokens, recorded.output, recorded.blocks)
        choice = schedule(pool, prompt)
        outcome.ttft_s.append(pool.ttft_s(prompt, choice))
        outcome.prefill_s.append(pool.hardware.prefill_s(prompt, choice.blocks))
        outcome.hits += choice.blocks
        outcome.blocks += len(prompt.blocks)
        node = pool.nodes[choice.node]
        node.free_at = prompt.at + outcome.ttft_s[-1]
        node.cache.put(prompt.blocks)
    return outcome


def one_node(prompts: Sequence[Prompt], nodes: int, hardware: Hardware | None = None) -> Outcome:
    """Everything through one prefix cache as large as that of so many nodes.

    Mooncake's study of a global against a local cache (FAST'25, figure 10) sends a prompt to the node that matches
    most of it. By match alone the whole trace meets one node's cache, for all prompts share their first block; how its
    scheduler weighs load against the match is not said.
    """
    return serve(prompts, longest_prefix, 1, capacity=NODE_BLOCKS * nodes, hardware=hardware)
