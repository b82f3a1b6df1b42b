"""What int8 weights cost in quality: perplexity of a text and agreement of greedy outputs, beside bf16 and fp32."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch

from tandem_worker.engine import EngineSettings, LoadedModel, load_model, load_tokenizer
from tandem_worker.engine.batch import prefill_batch
from tandem_worker.engine.request import Sampling
from tandem_worker.engine.sequence import SequenceState, fresh
from tandem_worker.engine.store import KvStore

TEXT: Final = "docs/reference/transfer.md"
WINDOW, WINDOWS = 512, 6
PROMPT, OUTPUT, PROMPTS = 64, 32, 16
SETTINGS: Final = EngineSettings(dtype="bfloat16", max_context=1024, kv_memory_mib=256, threads=2)
KINDS: Final = {
    "fp32": replace(SETTINGS, dtype="float32"),
    "bf16": SETTINGS,
    "int8 weights": replace(SETTINGS, weights="int8"),
}


@dataclass(frozen=True, slots=True)
class Found:
    """Of one kind of weights."""

    perplexity: float
    outputs: list[list[int]]


def main() -> None:
    """Print the table; nothing is written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("build/models/smollm2-135m-instruct"))
    parser.add_argument("--text", type=Path, default=Path(TEXT))
    given = parser.parse_args()
    ids = load_tokenizer(given.model).encode(given.text.read_text(encoding="utf-8"), special=False)
    found = {kind: measured(load_model(given.model, settings), settings, ids) for kind, settings in KINDS.items()}
    print(f"{given.model.name}, {given.text}: perplexity of {WINDOWS} windows of {WINDOW} tokens; "
          f"greedy: {PROMPTS} prompts of {PROMPT} tokens, {OUTPUT} tokens each, against bf16")  # fmt: skip
    print("| weights | perplexity | of bf16's | greedy tokens up to the first other one | outputs that are the same |")
    print("|---|---|---|---|---|")
    base = found["bf16"]
    for kind, one in found.items():
        leading = [agreement(left, right) for left, right in zip(one.outputs, base.outputs, strict=True)]
        share, same = sum(leading) / (PROMPTS * OUTPUT), sum(count == OUTPUT for count in leading)
        ratio = one.perplexity / base.perplexity
        print(f"| {kind} | {one.perplexity:.3f} | {ratio:.4f} | {share:.1%} | {same} of {PROMPTS} |")


@torch.inference_mode()
def measured(model: LoadedModel, settings: EngineSettings, ids: list[int]) -> Found:
    """Both figures of one model."""
    kv = KvStore(model.info, settings, model.decoder.dtype).tensor
    starts = range(0, WINDOW * WINDOWS, WINDOW)
    losses = [loss(model, settings, kv, ids[start : start + WINDOW]) for start in starts]
    prompts = [ids[at * 150 : at * 150 + PROMPT] for at in range(PROMPTS)]
    outputs = [greedy(model, settings, kv, prompt) for prompt in prompts]
    return Found(math.exp(sum(losses) / len(losses)), outputs)


def loss(model: LoadedModel, settings: EngineSettings, kv: torch.Tensor, ids: list[int]) -> float:
    """Mean negative log-probability of a window's tokens after its first."""
    one = placed(ids, settings)
    batch = prefill_batch([(one, len(ids))], settings.page_tokens, model.decoder.mask_dtype)
    logits = model.decoder.forward(replace(batch, wanted=torch.arange(len(ids) - 1)), kv).float()
    return float(torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:])))


def greedy(model: LoadedModel, settings: EngineSettings, kv: torch.Tensor, prompt: list[int]) -> list[int]:
    """The best tokens that follow."""
    one = placed(prompt, settings, OUTPUT)
    for _ in range(OUTPUT):
        batch = prefill_batch([(one, one.left)], settings.page_tokens, model.decoder.mask_dtype)
        best = int(model.decoder.forward(batch, kv).argmax())
        one.computed = len(one.tokens)
        one.tokens.append(best)
    return one.tokens[len(prompt) :]


def placed(ids: list[int], settings: EngineSettings, more: int = 0) -> SequenceState:
    """A sequence with pages for its tokens and `more`, of which nothing is computed."""
    one = fresh("", ids, Sampling(max_tokens=1), settings.page_tokens)
    one.pages = list(range(-(-(len(ids) + more) // settings.page_tokens)))
    return one


def agreement(left: list[int], right: list[int]) -> int:
    """Leading tokens that are the same."""
    return next((at for at, (one, other) in enumerate(zip(left, right, strict=True)) if one != other), len(left))


if __name__ == "__main__":
    main()
