"""What each engine can do: the facts that the CRD's rules, the planner and the pods' templates share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Ability:
    """One engine. `degrees`: the kinds of parallelism that it has, `batch`: requests that a worker runs at once.

    `batch_option` is its argument for that; where spec.engine.args lacks it, the worker gets `batch`, so that planner
    and worker mean the same number, whatever the engine's version would choose.
    """

    backends: tuple[str, ...]
    dtypes: tuple[str, ...]
    degrees: tuple[str, ...]
    flips: bool  # may a worker change its role while it runs?
    batch_option: str
    batch: int


DEGREES: Final = ("tensor", "pipeline", "expert", "data")
ENGINES: Final[Mapping[str, Ability]] = {
    "tandem": Ability(
        # Not shm: two pods of a node share no folder but the node's own, and nothing puts a pair on one node.
        backends=("tcp", "nixl", "mooncake"),
        dtypes=("bfloat16", "float32"),
        degrees=("tensor",),  # pools may differ in it over tcp: pages are resharded on their way
        flips=True,
        batch_option="--max-batch",
        batch=64,
    ),
    # The NIXL connector takes part as both sides at once (kv_both), so its role is the router's choice alone.
    "vllm": Ability(
        backends=("nixl",),
        dtypes=("bfloat16", "float16", "float32"),
        degrees=DEGREES,
        flips=True,
        batch_option="--max-num-seqs",
        batch=256,
    ),
    # --disaggregation-mode is fixed when the server starts.
    "sglang": Ability(
        backends=("nixl", "mooncake"),
        dtypes=("bfloat16", "float16", "float32"),
        degrees=DEGREES,
        flips=False,
        batch_option="--max-running-requests",
        batch=256,
    ),
}
