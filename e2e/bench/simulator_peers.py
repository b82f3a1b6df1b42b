"""Other simulators on the same loads: splitwise-sim (a checkout) and NVIDIA's DynoSim (a Python with ai-dynamo)."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from e2e.bench import simulator_inputs as inputs

if TYPE_CHECKING:
    from pathlib import Path

# Models whose measured times splitwise-sim has, as its configuration names them.
LLAMA, BLOOM = "llama2-70b", "bloom-176b"
CONFIG = "one_machine"


@dataclass(frozen=True, slots=True)
class Command:
    """What to run, and where."""

    words: tuple[str, ...]
    cwd: Path


def splitwise(
    checkout: Path, python: str, load: inputs.Load, name: str, model: str, workers: tuple[int, int]
) -> Command:
    """Its own scheduler for split pools (mixed_pool), all on H100, tensor parallel 8, times from its table."""
    inputs.write_splitwise(load, checkout / "traces" / f"{name}.csv")
    prefill, decode = workers
    write_local_config(checkout / "configs")
    words = (
        python, "run.py", "--config-name", CONFIG, "applications.0.scheduler=mixed_pool",
        f"applications.0.model_architecture={model}",
        f"applications.0.model_size={model}-fp16", "cluster=half_half", "cluster.servers.0.count=0",
        f"cluster.servers.1.count={prefill + decode}", "start_state=splitwise", "start_state.split_type=homogeneous",
        f"start_state.prompt.num_instances={prefill}", f"start_state.token.num_instances={decode}",
        "performance_model=db", f"trace.filename={name}", "debug=False", "seed=0",
    )  # fmt: skip
    return Command(words, checkout)


def dynosim(python: str, load: inputs.Load, folder: Path, workers: tuple[int, int]) -> Command:
    """Offline replay of a Mooncake trace; its default engine, prefill and decode workers."""
    trace = folder / "dynosim.jsonl"
    inputs.write_mooncake(load, trace)
    prefill, decode = workers
    words = (
        python, "-m", "dynamo.replay", str(trace), "--replay-mode", "offline",
        "--prefill-engine-args", '{"worker_type":"prefill"}', "--decode-engine-args", '{"worker_type":"decode"}',
        "--num-prefill-workers", str(prefill), "--num-decode-workers", str(decode),
        "--report-json", str(folder / "dynosim.json"),
    )  # fmt: skip
    return Command(words, folder)


def write_local_config(folder: Path) -> None:
    """Its configuration without the launcher for a Ray cluster: one run on this machine needs none."""
    text = (folder / "config.yaml").read_text(encoding="utf-8").partition("\n  launcher:")[0]
    lines = [line for line in text.splitlines() if "hydra/launcher" not in line]
    (folder / f"{CONFIG}.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def clean(checkout: Path) -> None:
    """Its results of earlier runs: it appends to them."""
    shutil.rmtree(checkout / "results", ignore_errors=True)
