"""From sequences to the tensors of one forward pass."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch

from tandem_worker.engine.decoder import Batch, Group

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor

    from tandem_worker.engine.sequence import SequenceState

MAX_GROUP_PAGES = 512  # gathered at once; larger copies do not stay in the cache until they are used
MIN_SPREAD_PAGES = 8  # groups whose lengths differ by less are not worth splitting: a group costs a few calls a layer


class Rows(Protocol):
    """What a batch needs to know of a sequence."""

    tokens: list[int]
    computed: int

    @property
    def pages(self) -> Sequence[int]:
        """Its pages' numbers."""


@dataclass(slots=True, eq=False)
class Guessed:
    """A sequence with guesses behind its tokens."""

    tokens: list[int]
    pages: Sequence[int]
    computed: int


R = TypeVar("R", bound=Rows)


def decode_batch(
    sequences: Sequence[R], page_tokens: int, dtype: torch.dtype | None, window: int | None = None
) -> tuple[Batch, list[R]]:
    """One row each: the last token. Also the sequences in the order of the rows.

    `dtype`: of the masks, None makes none; `window`: see Traits.
    """
    ordered = sorted(sequences, key=lambda one: -len(one.pages))
    groups: list[Group] = []
    for start, end in length_groups([len(one.pages) for one in ordered]):
        groups.append(_decode_group(ordered[start:end], page_tokens, dtype, window))
    positions = [len(one.tokens) - 1 for one in ordered]
    batch = Batch(
        tokens=ints([one.tokens[-1] for one in ordered]),
        positions=ints(positions),
        page=ints([one.pages[at // page_tokens] for one, at in zip(ordered, positions, strict=True)]),
        slot=ints([at % page_tokens for at in positions]),
        groups=tuple(groups),
        wanted=torch.arange(len(ordered)),
    )
    return batch, ordered


def step_batch(
    sequences: Sequence[SequenceState],
    guesses: Mapping[SequenceState, list[int]],
    page_tokens: int,
    dtype: torch.dtype | None,
    window: int | None = None,
) -> tuple[Batch, list[SequenceState]]:
    """As `decode_batch`; behind it, a sequence with guesses has a row for its last token and one for each guess."""
    plain = [one for one in sequences if one not in guesses]
    if len(plain) == len(sequences):
        return decode_batch(sequences, page_tokens, dtype, window)
    guessed = [one for one in sequences if one in guesses]
    views = [Guessed([*one.tokens, *guesses[one]], one.pages, len(one.tokens) - 1) for one in guessed]
    judging = prefill_batch([(view, len(view.tokens) - view.computed) for view in views], page_tokens, dtype, window)
    if not plain:
        return replace(judging, wanted=torch.arange(len(judging.tokens))), guessed
    decoding, ordered = decode_batch(plain, page_tokens, dtype, window)
    return _joined(decoding, judging), [*ordered, *guessed]


def _joined(first: Batch, second: Batch) -> Batch:
    """Both in one pass, with the logits of every row."""
    tokens = torch.cat((first.tokens, second.tokens))
    return Batch(
        tokens=tokens,
        positions=torch.cat((first.positions, second.positions)),
        page=torch.cat((first.page, second.page)),
        slot=torch.cat((first.slot, second.slot)),
        groups=(*first.groups, *second.groups),
        wanted=torch.arange(len(tokens)),
    )


def ints(values: Iterable[int]) -> Tensor:
    """int64 of these values: `torch.tensor` asks each one what it is, which takes eight times as long."""
    packed = array("q", values)
    return torch.frombuffer(packed, dtype=torch.int64) if packed else torch.empty(0, dtype=torch.int64)


def length_groups(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Cut a descending list of page counts into (start, end) ranges: little padding in each, and none too large."""
    groups: list[tuple[int, int]] = []
    start = 0
    for at in range(1, len(lengths) + 1):
        if at == len(lengths) or _starts_group(lengths[start], lengths[at], at - start):
            groups.append((start, at))
            start = at
    return groups


def _starts_group(longest: int, length: int, members: int) -> bool:
    padding = longest - length
    return padding > max(MIN_SPREAD_PAGES, longest // 4) or (members + 1) * longest > MAX_GROUP_PAGES


def _decode_group(ordered: Sequence[Rows], page_tokens: int, dtype: torch.dtype | None, window: int | None) -> Group:
    width = len(ordered[0].pages)
    flat = array("q")
    for one in ordered:
        flat.extend(one.pages)
        flat.extend([one.pages[0]] * (width - len(one.pages)))
    pages = ints(flat)
    if dtype is None:
        return Group(len(ordered), 1, pages, None)
    lengths = ints([len(one.tokens) for one in ordered]).unsqueeze(1)
    at = torch.arange(width * page_tokens)
    hidden = at >= lengths
    mask = _additive(hidden, dtype)[:, None, None, :]
    window_mask = None
    if window is not None and int(lengths.max()) > window:
        window_mask = _additive(hidden | (at < lengths - window), dtype)[:, None, None, :]
    return Group(len(ordered), 1, pages, mask, window_mask)


def _additive(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))


def prefill_batch(
    pieces: Sequence[tuple[Rows, int]], page_tokens: int, dtype: torch.dtype | None, window: int | None = None
) -> Batch:
    """The next `count` tokens of each sequence; logits of the last row of those that this completes.

    `dtype`: of the masks, None makes none; `window`: see Traits.
    """
    tokens: list[int] = []
    positions: list[int] = []
    pages: list[int] = []
    groups: list[Group] = []
    wanted: list[int] = []
    for sequence, count in pieces:
        span = range(sequence.computed, sequence.computed + count)
        tokens += sequence.tokens[span.start : span.stop]
        positions += span
        pages += [sequence.pages[at // page_tokens] for at in span]
        groups.append(_prefill_group(sequence, span, page_tokens, dtype, window))
        if span.stop == len(sequence.tokens):
            wanted.append(len(tokens) - 1)
    at = ints(positions)
    return Batch(
        tokens=ints(tokens),
        positions=at,
        page=ints(pages),
        slot=at % page_tokens,
        groups=tuple(groups),
        wanted=ints(wanted),
    )


def _prefill_group(
    sequence: Rows, span: range, page_tokens: int, dtype: torch.dtype | None, window: int | None
) -> Group:
    pages = sequence.pages[: -(-span.stop // page_tokens)]
    if dtype is None:
        return Group(1, len(span), ints(pages), None)
    keys = len(pages) * page_tokens
    mask = window_mask = None
    if span.start:
        future = torch.full((len(span), keys), float("-inf"), dtype=dtype)
        mask = future.triu_(span.start + 1)[None, None]
    if window is not None and span.stop > window:
        row, at = torch.arange(span.start, span.stop).unsqueeze(1), torch.arange(keys)
        window_mask = _additive((at > row) | (at <= row - window), dtype)[None, None]
    return Group(1, len(span), ints(pages), mask, window_mask)
