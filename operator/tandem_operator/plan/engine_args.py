"""The engine's argument for the chunk size of colocated work: `spec.engine.args`, in each engine's spelling."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# tandem: docs/reference/borders.md; vLLM: EngineArgs.max_num_batched_tokens; SGLang: ServerArgs.chunked_prefill_size.
CHUNK_OPTIONS = {
    "tandem": "--chunk-tokens",
    "vllm": "--max-num-batched-tokens",
    "sglang": "--chunked-prefill-size",
}
TANDEM_CHUNK = 256  # what a Tandem worker takes without the argument; the others' defaults depend on version and GPU


def chunk_of(engine: str, args: Sequence[str]) -> int | None:
    """Tokens of a prefill chunk by the engine's arguments; None where they do not tell."""
    words = [word for arg in args for word in arg.split("=", 1)]
    found = [value for option, value in pairwise(words) if option == CHUNK_OPTIONS[engine]]
    if found and found[-1].isascii() and found[-1].isdigit() and int(found[-1]) > 0:
        return int(found[-1])
    return TANDEM_CHUNK if engine == "tandem" and not found else None


def with_chunk(engine: str, args: Sequence[str], tokens: int) -> list[str]:
    """The arguments with this chunk size instead of any other."""
    option, kept, is_value = CHUNK_OPTIONS[engine], [], False
    for arg in args:
        if not is_value and arg.split("=", 1)[0] != option:
            kept.append(arg)
        is_value = not is_value and arg == option
    return [*kept, f"{option}={tokens}"]
