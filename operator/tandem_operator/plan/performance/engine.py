"""How an engine schedules: what shares a pass, how much of it prompts may take, and what it spends off the GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine's scheduling rules and its time outside of the kernels, in seconds."""

    name: str
    chunk_tokens: int  # tokens of a pass at most
    mixes: bool  # decoding requests share passes with prompts; else they wait while prompts are computed
    splits: bool  # a prompt may be computed in parts, to fill a pass
    step_s: float  # scheduling and sampling of one pass
    row_s: float  # the same for each request of a pass
    request_s: float  # HTTP, tokenising and the first answer's way, once a request
    launch_s: float  # the host's time to launch one kernel of a pass with prompts, which no CUDA graph covers
    kept: float  # share of a request's output that memory is kept for when it is admitted
    of_free: bool  # memory_share is of what weights leave free; else of all memory, weights within it
    memory_share: float = 0.9
    poll_steps: int = 1  # decode steps between two looks for new requests
    gather_steps: int = 0  # decode steps that a prompt waits for others to come; 0: none
    lag_passes: int = 0  # passes between a request's first token and its way to the client
    fp8_kv: bool = False  # quantised checkpoints bring an FP8 KV cache


# Defaults of the engines' servers: vLLM V1 (max_num_batched_tokens 8192 on GPUs with 80 GB or more, chunked prefill),
# TensorRT-LLM (max_num_tokens 8192, inflight batching, prompts whole), SGLang (chunked_prefill_size 8192 to 16384,
# prompts before decode, not mixed). Times: docs/reference/planner/accuracy.md.
ENGINES: Final[Mapping[str, Engine]] = {
    "vllm": Engine("vllm", 8192, True, True, 0.9e-3, 12e-6, 0.034, 50e-6, 0.5, of_free=False),
    "trtllm": Engine(
        "trtllm", 8192, True, False, 0.25e-3, 8e-6, 0.015, 45e-6, 1.0, of_free=True, fp8_kv=True, lag_passes=1
    ),
    "sglang": Engine("sglang", 8192, False, True, 0.4e-3, 6e-6, 0.05, 45e-6, 0.7, of_free=False, lag_passes=1),
    "tandem": Engine("tandem", 8192, True, True, 1.0e-3, 10e-6, 0.010, 20e-6, 1.0, of_free=False),
}
