"""Decode passes as CUDA graphs: a pass of a known shape is captured once, and then costs one launch.

A batch is padded to its bucket, powers of two of rows and of pages a row, so that few shares of memory and of time go
into capturing. Padding rows read and write a page that belongs to nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from tandem_worker.engine.decoder import Batch, Group
from tandem_worker.engine.parallel import causal_mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from tandem_worker.engine.attention import Attention
    from tandem_worker.engine.decoder import Decoder

    Capture = Callable[[Callable[[], Tensor]], tuple[Callable[[], object], Tensor]]

MOST_GRAPHS: Final = 64  # each holds memory; whatever else comes runs uncaptured


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows, and pages a row."""

    rows: int
    width: int


def bucket(count: int, most: int) -> int:
    """The least power of two that holds `count`, but not above `most`."""
    return min(1 << (count - 1).bit_length(), most)


def shape_of(batch: Batch, most: Shape) -> Shape | None:
    """The bucket of a plain decode batch; None for any other, and for one that is larger than `most`."""
    if any(group.rows != 1 for group in batch.groups):
        return None
    rows = len(batch.tokens)
    width = max(len(group.pages) // group.sequences for group in batch.groups)
    if rows > most.rows or width > most.width:
        return None
    return Shape(bucket(rows, most.rows), bucket(width, most.width))


def padded(batch: Batch, shape: Shape, page_tokens: int, scratch: int, dtype: torch.dtype | None) -> Batch:
    """The same batch as one group of exactly this shape. `dtype`: of its mask, None makes none. On the host."""
    rows = len(batch.tokens)
    pages = torch.full((shape.rows, shape.width), scratch)
    start = 0
    for group in batch.groups:
        found = group.pages.view(group.sequences, -1)
        pages[start : start + group.sequences, : found.shape[1]] = found
        start += group.sequences

    def filled(values: Tensor, rest: int) -> Tensor:
        return torch.cat((values, torch.full((shape.rows - rows,), rest)))

    positions = filled(batch.positions, 0)
    # Always a mask, even for a first token, which needs none: whatever runs in a captured pass has the same tensors.
    mask = None if dtype is None else causal_mask(positions.unsqueeze(1), shape.width * page_tokens, dtype)
    group = Group(shape.rows, 1, pages.view(-1), mask)
    everything = torch.arange(shape.rows)
    return Batch(
        filled(batch.tokens, 0), positions, filled(batch.page, scratch), filled(batch.slot, 0), (group,), everything
    )


def tensors_of(batch: Batch) -> Iterator[Tensor]:
    """Every tensor of a batch, in an order that batches of one shape share."""
    yield from (batch.tokens, batch.positions, batch.page, batch.slot, batch.wanted)
    for group in batch.groups:
        yield from (one for one in (group.pages, group.mask, group.window_mask) if one is not None)


@dataclass(frozen=True, slots=True)
class Captured:
    """A pass: what it reads, how to run it again, and where its logits are."""

    batch: Batch
    attention: Attention
    replay: Callable[[], object]
    logits: Tensor


class DecodeGraphs:
    """The captured passes of one decoder over one KV tensor."""

    def __init__(self, decoder: Decoder, kv: Tensor, scratch: int, most: Shape, capture: Capture | None = None) -> None:
        """`scratch`: a page of `kv` that is nobody's; `capture`: by CUDA, a test's own elsewhere."""
        self._decoder, self._kv, self._scratch, self._most = decoder, kv, scratch, most
        self._capture = capture or CudaCapture()
        self._known: dict[Shape, Captured] = {}

    def run(self, batch: Batch) -> Tensor | None:
        """The logits of a decode batch, good until the next call; None: this batch is not one for graphs."""
        shape = shape_of(batch, self._most)
        if shape is None or (shape not in self._known and len(self._known) >= MOST_GRAPHS):
            return None
        page_tokens = self._kv.shape[3]
        even = padded(batch, shape, page_tokens, self._scratch, self._decoder.mask_dtype)
        one = self._known.get(shape)
        if one is None:
            one = self._known[shape] = self._captured(even, shape)
        else:
            for there, here in zip(tensors_of(one.batch), tensors_of(even), strict=True):
                there.copy_(here, non_blocking=True)
            one.attention.plan(even, page_tokens)
        one.replay()
        return one.logits[: len(batch.tokens)]

    def _captured(self, even: Batch, shape: Shape) -> Captured:
        attention = self._decoder.attention.fixed(shape.rows, shape.width)
        attention.plan(even, self._kv.shape[3])
        batch = even.on(self._decoder.device)
        replay, logits = self._capture(lambda: self._decoder.compute(batch, self._kv, attention))
        return Captured(batch, attention, replay, logits)


class CudaCapture:
    """Captures by CUDA; all graphs share one pool of memory, since they never run at the same time."""

    def __init__(self) -> None:
        self._pool: Any = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
        """How to run it again, and where its result will be. It has run by then, once and for real."""
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            run()  # libraries choose their kernels and take their memory before anything is recorded
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # Other threads copy pages meanwhile, which a capture by the whole process would forbid.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            logits = run()
        return graph.replay, logits
