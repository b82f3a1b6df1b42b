"""Tensor parallelism: each rank, a process, has a share of the heads and of the MLP; two sums a layer join them.

Rank 0 is the worker: it schedules and samples, and tells the others each batch before it computes its own share of it.
They have the same page numbers and decide nothing. Shares as in Megatron-LM (Shoeybi et al., 2019): Q, K, V, gate and
up by rows, output and down by columns; where ranks outnumber KV heads, several hold the same one. Embedding and head
are whole on every rank; only rank 0 computes logits.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import timedelta
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import torch
import torch.distributed as dist

from tandem_worker.engine.decoder import Batch, Group
from tandem_worker.engine.device import device_of
from tandem_worker.engine.request import ModelLoadError
from tandem_worker.transfer.reshard import heads_of

if TYPE_CHECKING:
    from torch import Tensor

    from tandem_worker.engine.config import ModelConfig
    from tandem_worker.engine.decoder import Decoder
    from tandem_worker.engine.memory import MemoryFile
    from tandem_worker.engine.request import EngineSettings

LOG = logging.getLogger(__name__)
Masks = tuple["Tensor | None", "Tensor | None"]
SILENCE_S: Final = 300.0  # rank 0 says something every second; this is for a rank that loads more slowly


class Order(IntEnum):
    """What rank 0 tells the others."""

    BEAT = 0  # nothing: I am alive
    RUN = 1  # a batch
    STOP = 2


def join(rank: int, settings: EngineSettings, address: str) -> None:
    """Meet the other ranks at `address` (host:port on rank 0's machine). Raises RuntimeError where one is missing.

    What is told lies on the host and goes over gloo; what is added up lies where it was computed.
    """
    backend = "gloo"
    if settings.device == "cuda":
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(device_of(settings, rank))
    silence, ranks = timedelta(seconds=SILENCE_S), settings.tensor_parallel
    dist.init_process_group(backend, f"tcp://{address}", rank=rank, world_size=ranks, timeout=silence)
    LOG.info("rank %d of %d has joined over %s", rank, ranks, backend)


def shard_config(config: ModelConfig, rank: int, ranks: int) -> ModelConfig:
    """The shape of one rank's share. Raises ModelLoadError where it does not come out even."""
    try:
        kv_heads = len(heads_of(rank, ranks, config.kv_heads))
    except ValueError as error:
        raise ModelLoadError(f"--tensor-parallel {ranks}: {error}; use another number") from error
    for what, count in (("heads", config.heads), ("MLP columns", config.intermediate_size)):
        if count % ranks:
            raise ModelLoadError(f"--tensor-parallel {ranks} does not divide {count} {what}; use another number")
    return replace(
        config,
        heads=config.heads // ranks,
        kv_heads=kv_heads,
        intermediate_size=config.intermediate_size // ranks,
    )


def shard_tensors(config: ModelConfig, tensors: dict[str, Tensor], rank: int, ranks: int) -> dict[str, Tensor]:
    """One rank's weights, of the whole model's."""
    size = config.head_dim
    heads, inner = config.heads // ranks, config.intermediate_size // ranks
    keys = heads_of(rank, ranks, config.kv_heads)
    queries = slice(rank * heads * size, (rank + 1) * heads * size)
    columns = slice(rank * inner, (rank + 1) * inner)
    rows = {"q_proj": queries, "k_proj": slice(keys.start * size, keys.stop * size), "gate_proj": columns}
    rows |= {"v_proj": rows["k_proj"], "up_proj": columns}
    across = {"o_proj": queries, "down_proj": columns}
    return {name: _share(name, one, rows, across, rank) for name, one in tensors.items()}


def _share(name: str, one: Tensor, rows: dict[str, slice], across: dict[str, slice], rank: int) -> Tensor:
    part = name.split(".")[-2]
    if part in rows:
        return one[rows[part]].contiguous()
    if part in across and name.endswith(".weight"):
        return one[:, across[part]].contiguous()
    if part in across:  # the bias of a sum counts once
        return one if rank == 0 else torch.zeros_like(one)
    return one


def add_up(part: Tensor) -> Tensor:
    """The sum over all ranks, on each of them."""
    dist.all_reduce(part)
    return part


class Leader:
    """What rank 0 says to the others. On the engine's thread."""

    def __init__(self, decoder: Decoder, memory: MemoryFile) -> None:
        """`memory`: all ranks' pages, see ranked.py."""
        decoder.reduce = add_up
        self.memory = memory
        self._lost = False

    def run(self, batch: Batch) -> None:
        """I compute my share of this batch now. Raises RuntimeError where a rank is gone."""
        self._say(Order.RUN, spelled(batch))

    def beat(self) -> None:
        """Nothing to do."""
        self._say(Order.BEAT)

    def stop(self) -> None:
        """The others may go; those that are left when one was lost find out by themselves."""
        if not self._lost:
            self._say(Order.STOP)
            dist.destroy_process_group()

    def _say(self, order: Order, words: Tensor | None = None) -> None:
        try:
            _tell(order, words)
        except RuntimeError:  # torch's word for a peer that is gone
            self._lost = True
            raise


def _tell(order: Order, words: Tensor | None = None) -> None:
    dist.broadcast(torch.tensor([order, 0 if words is None else len(words)]), 0)
    if words is not None:
        dist.broadcast(words, 0)


def follow(decoder: Decoder, kv: Tensor) -> None:
    """What a rank but the first does all its life. Raises RuntimeError when rank 0 is gone."""
    decoder.reduce = add_up
    window = decoder.config.traits.window
    with torch.inference_mode():
        while True:
            head = torch.zeros(2, dtype=torch.int64)
            dist.broadcast(head, 0)
            order, words = Order(int(head[0])), torch.zeros(int(head[1]), dtype=torch.int64)
            if order is Order.STOP:
                dist.destroy_process_group()
                return
            if order is Order.BEAT:
                continue
            dist.broadcast(words, 0)
            decoder.forward(understood(words, kv.shape[3], decoder.mask_dtype, window), kv)


def spelled(batch: Batch) -> Tensor:
    """A batch in numbers, but for its masks, which follow from the positions."""
    sizes = [[group.sequences, group.rows, len(group.pages)] for group in batch.groups]
    head = torch.tensor([len(batch.tokens), len(sizes), *(one for size in sizes for one in size)])
    pages = [group.pages for group in batch.groups]
    return torch.cat([head, batch.tokens, batch.positions, batch.page, batch.slot, *pages])


def understood(words: Tensor, page_tokens: int, dtype: torch.dtype | None, window: int | None) -> Batch:
    """The batch again. No row's logits are wanted here."""
    rows, count = int(words[0]), int(words[1])
    sizes = words[2 : 2 + 3 * count].view(-1, 3).tolist()
    rest = words[2 + 3 * count :]
    tokens, positions, page, slot = rest[: 4 * rows].view(4, rows)
    groups, at, start = [], 4 * rows, 0
    for sequences, of_each, pages in sizes:
        found = rest[at : at + pages]
        places = positions[start : start + sequences * of_each].view(sequences, of_each)
        keys = pages // sequences * page_tokens
        groups.append(Group(sequences, of_each, found, *masks_of(places, keys, dtype, window)))
        at, start = at + pages, start + sequences * of_each
    return Batch(tokens, positions, page, slot, tuple(groups), torch.zeros(0, dtype=torch.int64))


def masks_of(
    places: Tensor, keys: int, dtype: torch.dtype | None, window: int | None
) -> tuple[Tensor | None, Tensor | None]:
    """What batch.py makes: of a group's rows at `places` [sequences, rows], over `keys` positions."""
    if dtype is None:
        return None, None
    at, row = torch.arange(keys), places.unsqueeze(-1)
    whole = len(places) == 1 and int(places[0, 0]) == 0
    mask = None if whole else causal_mask(places, keys, dtype)
    seen = window is None or int(places.max()) < window
    return mask, None if seen else _additive((at > row) | (at <= row - (window or 0)), dtype)


def causal_mask(places: Tensor, keys: int, dtype: torch.dtype) -> Tensor:
    """[sequences, 1, rows, keys]: -inf over the keys behind each row of `places` [sequences, rows], else 0."""
    return _additive(torch.arange(keys) > places.unsqueeze(-1), dtype)


def _additive(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf")).unsqueeze(1)
