"""`make bench-engine`: tokens a second of this engine beside its peers', and each cell's share of the machine's limit.

All peers get the same weights and the same number of threads, one after the other in one run; ratios hold within it.
openvino-genai and llama.cpp live in an environment of their own: `--peers build/peers` makes it where it is missing.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from e2e.bench.engine_models import NAMES, directory
from e2e.bench.engine_page import share, write_section
from e2e.bench.engine_peers import CONTEXT, clock_of
from e2e.bench.performance import machine
from e2e.bench.table import Row, against, write
from e2e.harness.kube import REPO
from tandem_worker.engine.config import config_from_json
from tandem_worker.engine.memory import own_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CELLS: Final = ("prefill 512", "prefill 2048", "decode 1", "decode 8", "decode 32")
OWN: Final = ("tandem", "transformers", "transformers fp32")
FOREIGN: Final = ("openvino-genai", "llama.cpp")
RESULTS: Final = REPO / "build/bench/engine-runs.json"
CHILD_S: Final = 900.0
GIB: Final = 2**30


def main() -> int:
    """Measure, print, write build/bench/engine.json, and the page's section with --docs."""
    asked = parse()
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    runs: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    for name in asked.models.split(","):
        runs[name] = begin(name, asked)
        for peer, found in measure(name, asked):
            runs[name]["rates"][peer] = found
            check_possible(runs[name], peer)
            RESULTS.write_text(json.dumps(runs, indent=1) + "\n")
    write("engine", [row for name, run in runs.items() for row in rows_of(name, run)])
    if asked.docs:
        write_section(runs)
    return 0


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser("bench-engine")
    parser.add_argument("--models", default=",".join(NAMES), help="of " + ", ".join(NAMES))
    parser.add_argument("--cells", default=",".join(CELLS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=24, help="of a decode cell")
    parser.add_argument("--peers", type=Path, help="an environment for openvino-genai and llama.cpp; made if missing")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: for a busy machine, one thread")
    parser.add_argument("--only", default=",".join((*OWN, *FOREIGN)), help="peers to run")
    parser.add_argument("--docs", action="store_true", help="write the section of docs/reference/performance.md")
    return parser.parse_args()


def begin(name: str, asked: argparse.Namespace) -> dict[str, Any]:
    """One model's run without the rates: where, when, the machine's limits and the cells' work."""
    return {
        "machine": machine(),
        "command": f'make bench-engine ARGS="{" ".join(sys.argv[1:])}"',
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "threads": asked.threads,
        "clock": asked.clock,
        "limits": limits(asked.threads, clock_of({"clock": asked.clock})),
        "work": {cell: work(directory(name), cell) for cell in asked.cells.split(",")},
        "rates": {},
    }


def measure(name: str, asked: argparse.Namespace) -> Iterator[tuple[str, dict[str, float]]]:
    """Everybody's cells, one after the other."""
    place = directory(name)
    job: dict[str, Any] = {
        "model": str(place),
        "threads": asked.threads,
        "cells": asked.cells.split(","),
        "steps": asked.steps,
        "clock": asked.clock,
        "vocab": json.loads((place / "config.json").read_text())["vocab_size"],
    }
    foreign = peers_python(asked.peers) if asked.peers else None
    for peer in asked.only.split(","):
        if peer in OWN:
            yield peer, child(Path(sys.executable), "e2e.bench.engine_children", {**job, "peer": peer})
        elif foreign is not None:
            kind = "f16" if peer == "openvino-genai" else "bf16"
            file = str(place / f"{kind}.gguf")
            yield peer, child(foreign, "e2e.bench.engine_peers", {**job, "peer": peer, "gguf": file})


def child(python: Path, module: str, job: dict[str, Any]) -> dict[str, float]:
    """One peer's cells; the threads of every library are bounded before it is loaded."""
    threads = str(job["threads"])
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(REPO), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    done = subprocess.run(
        [str(python), "-m", module, json.dumps(job)],
        env=environment, capture_output=True, text=True, timeout=CHILD_S, check=False, cwd=REPO,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{job['peer']} failed: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(f"{job['peer']}: " + ", ".join(f"{cell} {rate:,.0f} tok/s" for cell, rate in found.items()), flush=True)
    return found


def peers_python(place: Path) -> Path:
    """The peers' interpreter; the environment is made outside the lock, llama.cpp compiled for this machine."""
    python = place / "bin/python"
    if not python.is_file():
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", "openvino-genai", "llama-cpp-python"], check=True
        )
    return python


def limits(threads: int, clock: Callable[[], float]) -> dict[str, float]:
    """What this machine gives these threads now: GB/s of a read stream, GFLOP/s of products, in fp32 or bf16."""
    torch.set_num_threads(threads)
    stream = own_memory(GIB // 2).view(torch.float32).fill_(1)  # far beyond the caches, in large pages as weights are
    wide = torch.randn(1024, 1024)
    read = best(stream.sum, 5, clock)
    product = min(best(partial(torch.matmul, one, one), 8, clock) for one in (wide, wide.bfloat16()))
    return {"read_gb_s": stream.nbytes / read / 1e9, "gemm_gflop_s": 2 * 1024**3 / product / 1e9}


def check_possible(run: dict[str, Any], peer: str) -> None:
    """Raises RuntimeError for a figure that this machine cannot give: whoever says it did not do the work."""
    for cell, rate in run["rates"][peer].items():
        if not 0 < share(run, cell, peer) <= 1:
            raise RuntimeError(
                f"{peer}, {cell}: {rate:,.0f} tok/s is {share(run, cell, peer):.0%} of what this machine's read stream "
                "and product allow; its timing is wrong"
            )


def best(call: Callable[[], object], times: int, clock: Callable[[], float]) -> float:
    """Seconds of the fastest of some calls, after one that does not count."""
    call()
    took = []
    for _ in range(times):
        start = clock()
        call()
        took.append(clock() - start)
    return min(took)


def work(place: Path, cell: str) -> dict[str, float]:
    """What a cell's pass must at least compute and read: {flop, bytes, tokens}. Weights and KV in bf16."""
    config = config_from_json(json.loads((place / "config.json").read_text()), place.name, str(place))
    hidden, heads = config.hidden_size, config.heads * config.head_dim
    kv = 2 * config.kv_heads * config.head_dim
    layer = hidden * (heads + kv) + heads * hidden + 3 * hidden * config.intermediate_size
    head = hidden * config.vocab
    kind, count = cell.split()
    size = int(count)
    if kind == "prefill":
        attention = 2 * size * size * heads * config.layers  # queries x keys and weights x values, half of each
        return {
            "flop": 2 * size * layer * config.layers + 2 * head + attention,
            "bytes": 2 * (layer * config.layers + head),
            "tokens": size,
        }
    return {
        "flop": size * (2 * (layer * config.layers + head) + 4 * CONTEXT * heads * config.layers),
        "bytes": 2 * (layer * config.layers + head) + 2 * size * CONTEXT * kv * config.layers,
        "tokens": size,
    }


def rows_of(name: str, run: dict[str, Any]) -> list[Row]:
    """Every figure of a run beside transformers' (bf16)."""
    rows = [Row(f"{name} {key}", value, key.split("_", 1)[1]) for key, value in run["limits"].items()]
    reference = run["rates"].get("transformers", {})
    for peer, found in run["rates"].items():
        for cell, rate in found.items():
            rows.append(against(f"{name} {cell} {peer}", rate, "tok/s", reference.get(cell, 0.0)))
    return rows


if __name__ == "__main__":
    sys.exit(main())
