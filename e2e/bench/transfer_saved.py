"""How much of a trace's KV need not travel: by the page pool's own prefix cache, beside a plain count."""

from __future__ import annotations

import json
from pathlib import Path

from tandem_worker.engine.pages import PagePool
from tandem_worker.engine.request import Shortage


def saved_share(trace: Path, workers: int, most: int, *, by_overlap: bool) -> tuple[float, float]:
    """Shares of KV bytes that need not travel: by the page pool's own prefix cache, and by a plain count of blocks.

    Requests go to the decode workers in turn, or to the one that knows most of their first blocks (the least loaded
    among equals); a block of the trace (512 tokens) is one page, and no cache is ever full.
    """
    requests = [json.loads(line)["hash_ids"] for line in trace.read_text().splitlines()[:most]]
    pages = sum(map(len, requests))
    pools = [PagePool(pages, 1) for _ in range(workers)]
    known: list[set[int]] = [set() for _ in range(workers)]
    saved = counted = 0
    for number, blocks in enumerate(requests):
        which = best_of(blocks, known) if by_overlap else number % workers
        saved += take_in(pools[which], blocks)
        counted += leading(blocks[:-1], known[which])
        known[which].update(blocks)
    return saved / pages, counted / pages


def take_in(pool: PagePool, blocks: list[int]) -> int:
    """Reserve, fill and give back a prompt's pages; those that were there already. The last page always travels."""
    chain = [block.to_bytes(16, "big") for block in blocks]
    claim = pool.reserve(len(chain), chain[:-1])
    if isinstance(claim, Shortage):
        raise TypeError("the pool was meant to hold the whole trace")
    pool.remember(chain, claim.pages)
    pool.release(claim.pages)
    return claim.shared


def best_of(blocks: list[int], known: list[set[int]]) -> int:
    """The worker that knows most of the first blocks; block 0, which all requests share, does not count."""
    overlaps = [max(leading(blocks[:-1], one) - 1, 0) for one in known]
    return min(range(len(known)), key=lambda which: (-overlaps[which], len(known[which])))


def leading(blocks: list[int], known: set[int]) -> int:
    """How many blocks from the first on are known."""
    return next((n for n, block in enumerate(blocks) if block not in known), len(blocks))
