"""Pages of several ranks as one store: what one worker's ranks hold, another worker's ranks hold after the way."""

import os
import threading
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest
import torch

from tandem_worker.engine.lending import Lending
from tandem_worker.engine.ranked import make_store, memory_of_ranks
from tandem_worker.transfer.reshard import heads_of, shares_of
from workers.tests.tiny import SETTINGS

LAYERS, TOKENS, SIZE = 3, SETTINGS.page_tokens, 8
PAIRS = list(product((1, 2, 4), (1, 2, 4), (1, 2, 4)))
PAGES, THERE = [7, 2, 3], [5, 6, 9]


def store_of(ranks, kv_heads):
    """Rank 0's store, and every rank's pages."""
    info = SimpleNamespace(layers=LAYERS, kv_heads=kv_heads, head_dim=SIZE)
    settings = replace(SETTINGS, tensor_parallel=ranks)
    leader = None if ranks == 1 else SimpleNamespace(memory=memory_of_ranks(settings))
    config = SimpleNamespace(kv_heads=len(heads_of(0, ranks, kv_heads)))
    return make_store(
        SimpleNamespace(info=info, decoder=SimpleNamespace(dtype=torch.float32, config=config), leader=leader), settings
    )


def whole(kv_heads):
    """KV of some pages, every number another: [n, layers, 2, tokens, heads, size]."""
    shape = (len(PAGES), LAYERS, 2, TOKENS, kv_heads, SIZE)
    return torch.arange(1, 1 + torch.Size(shape).numel(), dtype=torch.float32).view(shape)


def held(store, pages, ranks, kv_heads, heads):
    """Does every rank hold its heads of this in these pages?"""
    own = [heads[..., heads_of(rank, ranks, kv_heads), :] for rank in range(ranks)]
    return all(torch.equal(tensor[torch.tensor(pages)], one) for tensor, one in zip(store.ranks, own, strict=True))


def put(store, pages, ranks, kv_heads, heads):
    for rank, tensor in enumerate(store.ranks):
        tensor[torch.tensor(pages)] = heads[..., heads_of(rank, ranks, kv_heads), :]


class Pool:
    """Lends whatever is asked for."""

    lent_pages = 0

    def lend(self, pages):
        pass


def bring(content, target):
    """As a frame does: into the memory that the other worker shows."""
    at = 0
    for piece in target.memory(THERE):
        piece[:] = content[at : at + len(piece)]
        at += len(piece)
    assert at == len(content), "a frame is as long as the pages that it goes to"
    target.filled(THERE)


@pytest.mark.parametrize(("kv_heads", "prefill", "decode"), PAIRS)
def test_every_rank_gets_its_heads_of_every_page(kv_heads, prefill, decode):
    source, target = store_of(prefill, kv_heads), store_of(decode, kv_heads)
    put(source, PAGES, prefill, kv_heads, whole(kv_heads))
    shares = shares_of(decode, kv_heads)
    bring(b"".join(Lending(Pool(), source, threading.Condition()).lend(PAGES, shares).pieces), target)
    assert held(target, THERE, decode, kv_heads, whole(kv_heads))
    others = [page for page in range(target.pages) if page not in THERE]
    assert not any(tensor[torch.tensor(others)].any() for tensor in target.ranks)


@pytest.mark.parametrize(("kv_heads", "ranks"), list(product((1, 2, 4), (1, 2, 4))))
def test_what_is_cleared_or_blanked_is_so_on_every_rank(kv_heads, ranks):
    store = store_of(ranks, kv_heads)
    put(store, PAGES, ranks, kv_heads, whole(kv_heads))
    store.blank(PAGES[0], 1)
    store.clear(PAGES[1:2])
    left = whole(kv_heads)
    left[0, :, :, 1:] = 0
    left[1] = 0
    assert held(store, PAGES, ranks, kv_heads, left)


def test_the_memory_of_ranks_cannot_shrink_under_them():
    memory = memory_of_ranks(replace(SETTINGS, tensor_parallel=2))
    memory.seal()
    with pytest.raises(PermissionError):
        os.ftruncate(memory.descriptor, 4096)
