"""What 8 bits cost in quality: perplexity of a text and agreement of greedy outputs, beside bf16 and fp32.

`python -m e2e.bench.quality --docs`: prints the table and writes it into docs/reference/performance.md.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch

from e2e.bench.performance import put_text, stamp
from e2e.bench.quality_ranks import ranks_table
from tandem_worker.engine import EngineSettings, LoadedModel, load_model, load_tokenizer
from tandem_worker.engine.batch import decode_batch, prefill_batch
from tandem_worker.engine.request import Sampling
from tandem_worker.engine.sequence import SequenceState, fresh
from tandem_worker.engine.store import KvStore

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXT: Final = "docs/reference/transfer.md"
WINDOW, WINDOWS = 512, 6
PROMPT, OUTPUT, PROMPTS = 64, 32, 16
SETTINGS: Final = EngineSettings(dtype="bfloat16", max_context=1024, kv_memory_mib=256, threads=2)
KINDS: Final = {
    "fp32": replace(SETTINGS, dtype="float32"),
    "bf16": SETTINGS,
    "int8 weights": replace(SETTINGS, weights="int8"),
    "int8 KV": replace(SETTINGS, kv="int8"),
    "fp8 KV": replace(SETTINGS, kv="fp8"),
}


@dataclass(frozen=True, slots=True)
class Found:
    """Of one kind of weights."""

    perplexity: float
    outputs: list[list[int]]


def main() -> None:
    """Print the table, and with --docs write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("build/models/smollm2-135m-instruct"))
    parser.add_argument("--text", type=Path, default=Path(TEXT))
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--ranks", type=int, default=3, help="of the last table; 1: without it")
    parser.add_argument("--docs", action="store_true")
    given = parser.parse_args()
    ids = load_tokenizer(given.model).encode(given.text.read_text(encoding="utf-8"), special=False)
    found: dict[str, Found] = {}
    for kind in given.kinds.split(","):
        start = time.perf_counter()
        found[kind] = measured(load_model(given.model, KINDS[kind]), KINDS[kind], ids)
        print(f"{kind}: {time.perf_counter() - start:.0f} s", flush=True)
    lines = list(table(found))
    if given.ranks > 1:
        lines += ["", *ranks_table(given.model, SETTINGS, given.ranks, prompts_of(ids), OUTPUT)]
    print("\n".join(lines))
    if given.docs:
        said = (
            f"{given.model.name}, {given.text}: perplexity of {WINDOWS} windows of {WINDOW} tokens; greedy: {PROMPTS} "
            f"prompts of {PROMPT} tokens, {OUTPUT} tokens each, against bf16. Below: spread over ranks, against one."
        )
        command = f"python -m e2e.bench.quality {' '.join(sys.argv[1:])}".strip()
        put_text("quality", "\n".join((stamp(command), said, "", *lines)) + "\n")


def table(found: dict[str, Found]) -> Iterator[str]:
    """Everybody beside bf16."""
    yield "| what | perplexity | of bf16's | greedy tokens up to the first other one | outputs that are the same |"
    yield "|---|---|---|---|---|"
    base = found["bf16"]
    for kind, one in found.items():
        leading = [agreement(left, right) for left, right in zip(one.outputs, base.outputs, strict=True)]
        share, same = sum(leading) / (PROMPTS * OUTPUT), sum(count == OUTPUT for count in leading)
        ratio = one.perplexity / base.perplexity
        yield f"| {kind} | {one.perplexity:.3f} | {ratio:.4f} | {share:.1%} | {same} of {PROMPTS} |"


@torch.inference_mode()
def measured(model: LoadedModel, settings: EngineSettings, ids: list[int]) -> Found:
    """Both figures of one model."""
    kv = KvStore(model.info, settings, model.decoder.dtype).tensor
    starts = range(0, WINDOW * WINDOWS, WINDOW)
    losses = [loss(model, settings, kv, ids[start : start + WINDOW]) for start in starts]
    outputs = greedy(model, settings, kv, prompts_of(ids))
    return Found(math.exp(sum(losses) / len(losses)), outputs)


def prompts_of(ids: list[int]) -> list[list[int]]:
    """Pieces of the text, apart from each other."""
    return [ids[at * 150 : at * 150 + PROMPT] for at in range(PROMPTS)]


def loss(model: LoadedModel, settings: EngineSettings, kv: torch.Tensor, ids: list[int]) -> float:
    """Mean negative log-probability of a window's tokens after its first."""
    one = placed(ids, settings)
    batch = prefill_batch([(one, len(ids))], settings.page_tokens, model.decoder.mask_dtype)
    logits = model.decoder.forward(replace(batch, wanted=torch.arange(len(ids) - 1)), kv).float()
    return float(torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:])))


def greedy(model: LoadedModel, settings: EngineSettings, kv: torch.Tensor, prompts: list[list[int]]) -> list[list[int]]:
    """The best tokens that follow each; a step computes all of them."""
    size, masks = settings.page_tokens, model.decoder.mask_dtype
    each = -(-(PROMPT + OUTPUT) // size)
    ones = [placed(prompt, settings, OUTPUT, at * each) for at, prompt in enumerate(prompts)]
    for one in ones:
        take(one, model.decoder.forward(prefill_batch([(one, one.left)], size, masks), kv)[0])
    for _ in range(OUTPUT - 1):
        batch, ordered = decode_batch(ones, size, masks)
        for one, logits in zip(ordered, model.decoder.forward(batch, kv), strict=True):
            take(one, logits)
    return [one.tokens[PROMPT:] for one in ones]


def take(one: SequenceState, logits: torch.Tensor) -> None:
    """Its next token."""
    one.computed = len(one.tokens)
    one.tokens.append(int(logits.argmax()))


def placed(ids: list[int], settings: EngineSettings, more: int = 0, first_page: int = 0) -> SequenceState:
    """A sequence with pages for its tokens and `more`, of which nothing is computed."""
    one = fresh("", ids, Sampling(max_tokens=1), settings.page_tokens)
    one.pages.extend(range(first_page, first_page - (-(len(ids) + more) // settings.page_tokens)))
    return one


def agreement(left: list[int], right: list[int]) -> int:
    """Leading tokens that are the same."""
    return next((at for at, (one, other) in enumerate(zip(left, right, strict=True)) if one != other), len(left))


if __name__ == "__main__":
    main()
