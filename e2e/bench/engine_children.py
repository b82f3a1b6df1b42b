"""The engine and transformers on the engine bench's cells, each in a process of its own.

One JSON object on argv: {peer, model, threads, cells, steps, clock}. One line on stdout: {cell: tokens a second}.
A decode cell begins with 512 tokens of random KV a sequence: nobody waits for 32 prompts to be computed.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from e2e.bench.engine_peers import CONTEXT, clock_of, ids
from tandem_worker.engine import Engine, EngineSettings, Reservation, Sampling, Token, load_model

if TYPE_CHECKING:
    from collections.abc import Callable

SETTINGS: Final = EngineSettings(
    dtype="bfloat16", max_context=4096, kv_memory_mib=1500, chunk_tokens=512, prefix_cache=False
)
STEP_S: Final = 300.0  # an answer that takes longer is none


class Ours:
    """The engine, through the calls that the server makes: scheduling and sampling are in the figures."""

    def __init__(self, job: dict[str, Any], settings: EngineSettings | None = None) -> None:
        settings = settings or replace(SETTINGS, threads=job["threads"])
        self._clock = clock_of(job)
        model = load_model(Path(job["model"]), settings)
        self.engine = Engine(model, settings)
        self.engine.start()
        self._steps = job["steps"]
        self._names = itertools.count()

    def prefill(self, size: int) -> float:
        """Tokens a second of one prompt, best of three."""
        return size / min(self._prompt(size, seed) for seed in range(3))

    def _prompt(self, size: int, seed: int) -> float:
        done = threading.Event()
        prompt = ids(size, self.engine.info.vocab, seed)
        start = self._clock()
        self.engine.submit(f"p{next(self._names)}", prompt, Sampling(max_tokens=1), lambda _: done.set())
        if not done.wait(STEP_S):
            raise TimeoutError(f"a prompt of {size} tokens took {STEP_S} s")
        return self._clock() - start

    def decode(self, size: int) -> float:
        """Tokens a second of `size` sequences, by the median step."""
        return size / statistics.median(self.gaps(size))

    def gaps(self, size: int) -> list[float]:
        """Seconds between the tokens of the last of `size` sequences that began together."""
        times: list[float] = []
        ended = threading.Event()

        def told(token: Token) -> None:
            times.append(self._clock())
            if token.finish is not None:
                ended.set()

        started = [self.handed_over(told if last else None) for last in [False] * (size - 1) + [True]]
        for start in started:
            start()
        if not ended.wait(STEP_S):
            raise TimeoutError(f"{self._steps} steps took {STEP_S} s")
        gaps = [after - before for before, after in itertools.pairwise(times)]
        return gaps[2:]

    def handed_over(self, told: Callable[[Token], None] | None) -> Callable[[], None]:
        """A sequence whose KV came from elsewhere, as a decode worker gets it; the call that begins it."""
        name, engine = f"d{next(self._names)}", self.engine
        prompt = ids(CONTEXT, engine.info.vocab, next(self._names))
        sampling = Sampling(max_tokens=self._steps + 3, ignore_eos=True)
        got = engine.reserve(name, prompt, sampling)
        if not isinstance(got, Reservation):
            raise TypeError(f"no pages: {got}")
        for piece in engine.open_pages(name, 0, got.pages):
            piece[:] = torch.randn(len(piece) // 2).bfloat16().view(torch.uint8).numpy().data
        engine.pages_written(name, 0, got.pages)
        return lambda: engine.commit(name, Token(prompt[-1], 0.0, (), None), told or (lambda _: None))


class Transformers:
    """`LlamaForCausalLM`, its default attention (SDPA), a dynamic cache."""

    def __init__(self, job: dict[str, Any]) -> None:
        from transformers import AutoModelForCausalLM  # noqa: PLC0415 (this child alone pays for it)

        self._clock = clock_of(job)
        torch.set_num_threads(job["threads"])
        dtype = torch.float32 if "fp32" in job["peer"] else torch.bfloat16
        self._model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=dtype).eval()
        self._steps = min(job["steps"], 6)

    def prefill(self, size: int) -> float:
        """Tokens a second of one prompt, after a short one."""
        vocab = self._model.config.vocab_size
        self._run(ids(64, vocab, 1))
        return size / self._run(ids(size, vocab, 2))

    def _run(self, prompt: list[int]) -> float:
        start = self._clock()
        with torch.inference_mode():
            self._model(torch.tensor([prompt]), use_cache=True, logits_to_keep=1).logits.argmax(-1)
        return self._clock() - start

    def decode(self, size: int) -> float:
        """Tokens a second of a batch, by the median step."""
        from transformers import DynamicCache  # noqa: PLC0415

        config, cache = self._model.config, DynamicCache()
        shape = (size, config.num_key_value_heads, CONTEXT, config.head_dim)
        for layer in range(config.num_hidden_layers):
            cache.update(*(torch.randn(shape).to(self._model.dtype) for _ in range(2)), layer)
        tokens, took = torch.tensor([ids(size, config.vocab_size, 1)]).T, []
        with torch.inference_mode():
            for _ in range(self._steps + 1):
                start = self._clock()
                logits = self._model(tokens, past_key_values=cache, use_cache=True).logits
                tokens = logits[:, -1].argmax(-1, keepdim=True)
                took.append(self._clock() - start)
        return size / statistics.median(took[1:])


def main() -> None:
    """Measure what is asked for."""
    job = json.loads(sys.argv[1])
    peer = Ours(job) if job["peer"] == "tandem" else Transformers(job)
    found = {}
    for cell in job["cells"]:
        kind, size = cell.split()
        found[cell] = peer.prefill(int(size)) if kind == "prefill" else peer.decode(int(size))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
