"""openvino-genai and llama.cpp on the engine bench's cells, in an environment of their own: stdlib, numpy, the peer.

One JSON object on argv: {peer, gguf, threads, cells, vocab, steps, clock}. One line on stdout: {cell: tokens a second}.
"""

from __future__ import annotations

import ctypes
import importlib
import itertools
import json
import random
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CONTEXT = 512
CACHE_GB = 4  # of openvino-genai's KV cache


def ids(count: int, vocab: int, seed: int) -> list[int]:
    """Random tokens; not the special ones."""
    drawn = random.Random(seed)
    return [drawn.randrange(200, vocab) for _ in range(count)]


def clock_of(job: dict[str, Any]) -> Callable[[], float]:
    """The wall's clock; or this process' seconds of CPU, which other processes' work changes less."""
    return time.process_time if job["clock"] == "cpu" else time.perf_counter


class OpenVino:
    """Its continuous-batching pipeline, step by step, without a prefix cache; at the precision that it chooses itself.

    The pipeline over a static batch tells whole answers alone, and a difference of two of them is no step's time.
    """

    def __init__(self, job: dict[str, Any]) -> None:
        self._np, self._ov, genai = (importlib.import_module(one) for one in ("numpy", "openvino", "openvino_genai"))
        self._genai, self._job, self._clock = genai, job, clock_of(job)
        schedule = genai.SchedulerConfig()
        schedule.enable_prefix_caching = False
        schedule.dynamic_split_fuse = False  # a prompt is one step, as in the others' cells
        schedule.max_num_batched_tokens = 4096
        schedule.cache_size = CACHE_GB
        self._pipeline = genai.ContinuousBatchingPipeline(
            job["gguf"], schedule, "CPU", {"INFERENCE_NUM_THREADS": job["threads"]}
        )
        self._names = itertools.count()

    def prefill(self, size: int) -> float:
        """Tokens a second of one prompt, best of two after one that does not count."""
        took = []
        for _ in range(3):
            handle = self._ask(size, 1)
            took.append(sum(seconds for seconds, _ in self._steps_of([handle])))
        return size / min(took[1:])

    def decode(self, size: int) -> float:
        """Tokens a second of `size` sequences, by the median step in which all of them got a token."""
        steps = self._job["steps"]
        handles = [self._ask(CONTEXT, steps + 1) for _ in range(size)]
        took = list(self._steps_of(handles))[-steps + 1 : -1]
        if any(scheduled != size for _, scheduled in took):
            raise RuntimeError(f"steps of {[scheduled for _, scheduled in took]} requests, where each has {size}")
        return size / statistics.median(seconds for seconds, _ in took)

    def _ask(self, length: int, new: int) -> Any:
        """A request for a prompt that nobody has asked before."""
        name = next(self._names)
        prompt = self._np.array([ids(length, self._job["vocab"], 1000 + name)], dtype=self._np.int64)
        config = self._genai.GenerationConfig(max_new_tokens=new, ignore_eos=True, do_sample=False)
        return self._pipeline.add_request(name, self._ov.Tensor(prompt), config)

    def _steps_of(self, handles: list[Any]) -> Iterator[tuple[float, int]]:
        """(seconds, requests that were in it) of each step until all have ended."""
        while self._pipeline.has_non_finished_requests():
            start = self._clock()
            self._pipeline.step()
            yield self._clock() - start, self._pipeline.get_metrics().scheduled_requests
        for handle in handles:
            if not handle.can_read() or not handle.read_all():
                raise RuntimeError("a request ended without its tokens")


class LlamaCpp:
    """Its C API: one batch a step, as its own benches do."""

    def __init__(self, job: dict[str, Any]) -> None:
        lib = importlib.import_module("llama_cpp")
        self._lib, self._job, self._clock = lib, job, clock_of(job)
        self._quiet = lib.llama_log_callback(lambda *_: None)
        lib.llama_log_set(self._quiet, ctypes.c_void_p(0))
        lib.llama_backend_init()
        self._model = lib.llama_model_load_from_file(job["gguf"].encode(), lib.llama_model_default_params())

    def prefill(self, size: int) -> float:
        """Tokens a second of one prompt, best of two after one that does not count."""
        context, batch, took = self._context(1, size), self._lib.llama_batch_init(max(2048, size), 0, 1), []
        for seed in range(3):
            self._lib.llama_memory_clear(self._lib.llama_get_memory(context), True)
            prompt = ids(size, self._job["vocab"], seed)
            took.append(self._run(context, batch, prompt, list(range(size)), [0] * size, 1))
        self._lib.llama_batch_free(batch)
        self._lib.llama_free(context)
        return size / min(took[1:])

    def decode(self, size: int) -> float:
        """Tokens a second of a batch, by the median step."""
        context = self._context(size, size * (CONTEXT + 128))
        batch, owners, vocab = self._lib.llama_batch_init(2048, 0, 1), list(range(size)), self._job["vocab"]
        for owner in owners:
            self._run(context, batch, ids(CONTEXT, vocab, owner), list(range(CONTEXT)), [owner] * CONTEXT, 1)
        steps = [
            self._run(context, batch, ids(size, vocab, step), [CONTEXT + step] * size, owners, size)
            for step in range(self._job["steps"])
        ]
        self._lib.llama_batch_free(batch)
        self._lib.llama_free(context)
        return size / statistics.median(steps[1:])

    def _context(self, sequences: int, tokens: int) -> Any:
        params = self._lib.llama_context_default_params()
        params.n_ctx, params.n_seq_max = tokens, sequences
        params.n_threads = params.n_threads_batch = self._job["threads"]
        params.n_batch = max(2048, tokens if sequences == 1 else 0)
        return self._lib.llama_init_from_model(self._model, params)

    def _run(
        self, context: Any, batch: Any, tokens: list[int], positions: list[int], owners: list[int], wanted: int
    ) -> float:
        batch.n_tokens = len(tokens)
        for at, token in enumerate(tokens):
            batch.token[at], batch.pos[at] = token, positions[at]
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, owners[at]
            batch.logits[at] = at >= len(tokens) - wanted
        start = self._clock()
        if self._lib.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed")
        self._lib.llama_synchronize(context)
        return self._clock() - start


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    peer = {"openvino-genai": OpenVino, "llama.cpp": LlamaCpp}[asked["peer"]](asked)
    found = {}
    for cell in asked["cells"]:
        kind, size = cell.split()
        found[cell] = getattr(peer, kind)(int(size))
    sys.stdout.write(json.dumps(found) + "\n")
