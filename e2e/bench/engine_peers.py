"""openvino-genai and llama.cpp on the engine bench's cells, in an environment of their own: stdlib, numpy, the peer.

One JSON object on argv: {peer, gguf, threads, cells, vocab, steps, clock}. One line on stdout: {cell: tokens a second}.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import random
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

CONTEXT = 512


def ids(count: int, vocab: int, seed: int) -> list[int]:
    """Random tokens; not the special ones."""
    drawn = random.Random(seed)
    return [drawn.randrange(200, vocab) for _ in range(count)]


def clock_of(job: dict[str, Any]) -> Callable[[], float]:
    """The wall's clock; or this process' seconds of CPU, which other processes' work changes less."""
    return time.process_time if job["clock"] == "cpu" else time.perf_counter


def openvino(job: dict[str, Any]) -> dict[str, float]:
    """Its LLM pipeline over a static batch, on the CPU, at the precision that it chooses itself."""
    np, ov, genai = (importlib.import_module(name) for name in ("numpy", "openvino", "openvino_genai"))

    pipeline = genai.LLMPipeline(job["gguf"], "CPU", INFERENCE_NUM_THREADS=job["threads"])

    def ask(batch: int, length: int, new: int) -> float:
        tokens = np.array([ids(length, job["vocab"], seed) for seed in range(batch)], dtype=np.int64)
        inputs = genai.TokenizedInputs(ov.Tensor(tokens), ov.Tensor(np.ones_like(tokens)))
        config = genai.GenerationConfig(max_new_tokens=new, ignore_eos=True, do_sample=False)
        start = clock()
        pipeline.generate(inputs, config)
        return clock() - start

    clock, found = clock_of(job), {}
    for cell in job["cells"]:
        kind, size = cell.split()
        if kind == "prefill":
            ask(1, int(size), 1)
            found[cell] = int(size) / ask(1, int(size), 1)
        else:
            first = ask(int(size), CONTEXT, 1)  # the prompts and a token each; the rest is steps
            found[cell] = int(size) * (job["steps"] - 1) / (ask(int(size), CONTEXT, job["steps"]) - first)
    return found


def llama(job: dict[str, Any]) -> dict[str, float]:
    """Its C API: one batch a step, as its own benches do."""
    lib = importlib.import_module("llama_cpp")

    quiet = lib.llama_log_callback(lambda *_: None)
    lib.llama_log_set(quiet, ctypes.c_void_p(0))
    lib.llama_backend_init()
    params = lib.llama_model_default_params()
    model = lib.llama_model_load_from_file(job["gguf"].encode(), params)
    found: dict[str, float] = {}
    for cell in job["cells"]:
        kind, size = cell.split()
        found[cell] = _llama_cell(lib, model, job, kind, int(size))
    return found


def _llama_cell(lib: Any, model: Any, job: dict[str, Any], kind: str, size: int) -> float:
    clock = clock_of(job)
    sequences = size if kind == "decode" else 1
    params = lib.llama_context_default_params()
    params.n_ctx = sequences * (CONTEXT + 128) if kind == "decode" else size
    params.n_seq_max = sequences
    params.n_threads = params.n_threads_batch = job["threads"]
    params.n_batch = max(2048, size)
    context = lib.llama_init_from_model(model, params)
    batch = lib.llama_batch_init(max(2048, sequences), 0, 1)

    def run(tokens: list[int], positions: list[int], owners: list[int], wanted: int) -> float:
        batch.n_tokens = len(tokens)
        for at, token in enumerate(tokens):
            batch.token[at], batch.pos[at] = token, positions[at]
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, owners[at]
            batch.logits[at] = at >= len(tokens) - wanted
        start = clock()
        if lib.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed")
        lib.llama_synchronize(context)
        return clock() - start

    memory = lib.llama_get_memory(context)
    if kind == "prefill":
        took = []
        for seed in range(3):
            lib.llama_memory_clear(memory, True)
            took.append(run(ids(size, job["vocab"], seed), list(range(size)), [0] * size, 1))
        rate = size / min(took[1:])
    else:
        for owner in range(sequences):
            run(ids(CONTEXT, job["vocab"], owner), list(range(CONTEXT)), [owner] * CONTEXT, 1)
        owners = list(range(sequences))
        steps = [
            run(ids(sequences, job["vocab"], step), [CONTEXT + step] * sequences, owners, sequences)
            for step in range(job["steps"])
        ]
        rate = sequences / statistics.median(steps[1:])
    lib.llama_batch_free(batch)
    lib.llama_free(context)
    return rate


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    sys.stdout.write(json.dumps({"openvino-genai": openvino, "llama.cpp": llama}[asked["peer"]](asked)) + "\n")
