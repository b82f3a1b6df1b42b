"""Greedy outputs of a model that is spread over ranks, beside those of one: sums in another order, so bf16 may part."""

from __future__ import annotations

import queue
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tandem_worker.assembly import load_ranks
from tandem_worker.engine import Engine, EngineSettings
from tandem_worker.engine.request import Sampling, Token

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOKEN_S: Final = 120.0
Outputs = list[list[Token]]


def ranks_table(path: Path, settings: EngineSettings, ranks: int, prompts: list[list[int]], tokens: int) -> list[str]:
    """Lines of a table: how far outputs over so many ranks are those of one, and how close the choice was there."""
    lines = ["| dtype | ranks | the same outputs | greedy tokens up to the first other one | gaps where they part |"]
    lines.append("|---|---|---|---|---|")
    for dtype in ("float32", "bfloat16"):
        one, many = (
            outputs_of(path, replace(settings, dtype=dtype, tensor_parallel=count), prompts, tokens)
            for count in (1, ranks)
        )
        lines.append(f"| {dtype} | {ranks} | {' | '.join(words_of(one, many))} |")
    return lines


def outputs_of(path: Path, settings: EngineSettings, prompts: list[list[int]], tokens: int) -> Outputs:
    """What follows each prompt, all of them served at once. Raises queue.Empty where no token comes."""
    model, others = load_ranks(path, settings)
    engine = Engine(model, settings)
    engine.start()
    try:
        said: list[queue.SimpleQueue[Token]] = [queue.SimpleQueue() for _ in prompts]
        sampling = Sampling(max_tokens=tokens, top_logprobs=2, ignore_eos=True)
        for number, (prompt, one) in enumerate(zip(prompts, said, strict=True)):
            engine.submit(f"q{number}", prompt, sampling, one.put)
        return [[one.get(timeout=TOKEN_S) for _ in range(tokens)] for one in said]
    finally:
        engine.stop()
        others.end()


def words_of(one: Outputs, many: Outputs) -> Iterator[str]:
    """A row's figures. A gap is that of the two best log-probabilities, by one rank, where another token was taken."""
    parted = [first_other(left, right) for left, right in zip(one, many, strict=True)]
    leading = [len(left) if at is None else at for left, at in zip(one, parted, strict=True)]
    gaps = sorted(gap(left[at]) for left, at in zip(one, parted, strict=True) if at is not None)
    yield f"{parted.count(None)} of {len(one)}"
    yield f"{sum(leading) / sum(map(len, one)):.1%}"
    yield ", ".join(f"{value:.3f}" for value in gaps) or "none"


def first_other(left: list[Token], right: list[Token]) -> int | None:
    """Where two outputs part; None: nowhere."""
    return next((at for at, (a, b) in enumerate(zip(left, right, strict=True)) if a.id != b.id), None)


def gap(token: Token) -> float:
    """How much better the best token was than the second, in natural logarithms of their probabilities."""
    return token.top[0][1] - token.top[1][1]
