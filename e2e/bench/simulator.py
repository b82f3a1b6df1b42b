"""How many requests a CPU second simulates, start-up included, beside other simulators on the same loads.

usage: python -m e2e.bench.simulator --data ../shared/data [--splitwise CHECKOUT --splitwise-python PYTHON]
                                     [--dynosim PYTHON] [--no-million]

A baseline is the peer's figure of this very run where a peer is given, else what was measured on two shared cores in
November 2026 (splitwise-sim 8f99e7d, ai-dynamo 1.4.2; both single runs, start-up included).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from e2e.bench import simulator_inputs as inputs
from e2e.bench import simulator_peers as peers
from e2e.bench.simulator_child import Cell
from e2e.bench.table import Row, against, write
from e2e.harness.kube import REPO
from tandem_operator.api.catalogue import find
from tandem_operator.plan.facts import Device, ModelShape
from tandem_operator.plan.roofline import prior_of

if TYPE_CHECKING:
    from collections.abc import Mapping

GPUS = 8  # a DGX H100: one worker, tensor parallel 8
# Sizes by the models' published configurations (meta-llama/Llama-2-70b-hf, bigscience/bloom), 2 bytes a parameter.
LLAMA = ModelShape(68_976_648_192, 80, 8192, 64, 8, 128, 32_000, 2)
BLOOM = ModelShape(176_247_271_424, 70, 14_336, 112, 112, 128, 250_880, 2)
DRAIN_S = 120.0  # longer than any answer of these loads takes
MUST = 20.0  # times splitwise-sim
MILLION_S = 60.0  # CPU seconds for a million requests, at most
MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Study:
    """A load on a cluster, and the peers' recorded requests a CPU second."""

    name: str
    load: inputs.Load
    workers: tuple[int, int]
    shape: ModelShape
    peer_model: str
    recorded: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Cost:
    """What a child process took."""

    cpu_s: float
    out: str


@dataclass(frozen=True, slots=True)
class Played:
    """A run of ours."""

    cpu_s: float
    rss_mb: float
    digest: str


def main() -> None:
    """Every study, ours twice (the same bytes?), and the peers that were given."""
    args = arguments()
    folder = REPO / "build/bench/simulator"
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for study in studies(args.data):
        rates = {**study.recorded, **peers_rates(study, args, folder)}
        rows += ours(study, folder, rates)
    if not args.no_million:
        rows += million(args.data, folder)
    write("simulator", rows)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Requests a CPU second, beside other simulators.")
    parser.add_argument("--data", type=Path, required=True, help="folder with the Azure conversation trace")
    parser.add_argument("--splitwise", type=Path, help="a checkout of Mutinifni/splitwise-sim")
    parser.add_argument("--splitwise-python", default=sys.executable, help="a Python with its requirements")
    parser.add_argument("--dynosim", help="a Python with ai-dynamo")
    parser.add_argument("--no-million", action="store_true")
    return parser.parse_args()


def studies(data: Path) -> list[Study]:
    """The two cells; recorded rates as the module's docstring says."""
    return [
        Study(
            "conversation replay, 2P+1D", inputs.replay(data), (2, 1), LLAMA, peers.LLAMA,
            {"splitwise-sim": 371.0, "DynoSim": 5056.0},
        ),
        Study(
            "70/s for 120 s, 25P+15D", inputs.poisson(data, 70, 120), (25, 15), BLOOM, peers.BLOOM,
            {"splitwise-sim": 310.0, "DynoSim": 5451.0},
        ),
    ]  # fmt: skip


def ours(study: Study, folder: Path, rates: Mapping[str, float]) -> list[Row]:
    """Requests a CPU second against each peer, memory, and whether a second run gives the same bytes."""
    one, other = simulate(study, folder), simulate(study, folder)
    cost, count = min(one, other, key=lambda c: c.cpu_s), len(study.load)
    rate = count / cost.cpu_s
    rows = [
        against(f"{study.name}: requests/CPU s, against {peer}", rate, "1/s", base, count)
        for peer, base in rates.items()
    ]
    return [
        *rows,
        Row(f"{study.name}: least ratio to splitwise-sim", rate / rates["splitwise-sim"], "x", MUST),
        Row(f"{study.name}: CPU time", cost.cpu_s, "s", n=count),
        Row(f"{study.name}: resident memory", cost.rss_mb, "MB"),
        Row(f"{study.name}: two runs differ", float(one.digest != other.digest), "", 0.0),
    ]


def million(data: Path, folder: Path) -> list[Row]:
    """A million requests at the second cell's rate; a tenth of them shows how memory grows."""
    rows = []
    for count in (MILLION // 10, MILLION):
        load = inputs.poisson(data, 70, 1.02 * count / 70)[:count]
        cost = simulate(Study(f"{count}", load, (25, 15), BLOOM, peers.BLOOM, {}), folder)
        rows += [
            against(f"{count:,} requests, 25P+15D: CPU time", cost.cpu_s, "s", MILLION_S * count / MILLION, count),
            Row(f"{count:,} requests, 25P+15D: resident memory", cost.rss_mb, "MB"),
        ]
    return rows


def simulate(study: Study, folder: Path) -> Played:
    """One child process; its cost, and the digest of what became of every request."""
    arrivals = folder / "arrivals.csv"
    inputs.write_ours(study.load, arrivals)
    cell = Cell(*study.workers, study.load[-1][0] + DRAIN_S, truth_of(study.shape))
    words = (sys.executable, "-m", "e2e.bench.simulator_child", str(arrivals), json.dumps(asdict(cell)))
    cost = measured(peers.Command(words, REPO))
    found = json.loads(cost.out)
    if found["requests"] != len(study.load):
        raise SystemExit(f"{study.name}: {found['requests']} of {len(study.load)} requests ended: raise DRAIN_S")
    return Played(cost.cpu_s, found["rss_mb"], found["digest"])


def truth_of(shape: ModelShape) -> dict[str, float]:
    """A worker's costs by the roofline."""
    entry = find("h100-sxm")
    device = Device(
        entry.name, entry.peak("bfloat16"), entry.memory_bytes, entry.bandwidth, entry.link, entry.price_per_hour
    )
    prior = prior_of(device, GPUS, shape)
    return {
        "prompt_token_s": prior.token_s,
        "prompt_pair_s": prior.pair_s,
        "chunk_base_s": prior.pass_s,
        "step_base_s": prior.pass_s,
        "step_slope_s": prior.token_s,
        "step_context_s": prior.context_token_s,
        "transfer_token_s": prior.transfer_token_s,
        "kv_tokens": int(prior.kv_room_tokens),
    }


def peers_rates(study: Study, args: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Requests a CPU second of the peers that were given."""
    rates = {}
    if args.dynosim:
        command = peers.dynosim(args.dynosim, study.load, folder, study.workers)
        rates["DynoSim"] = len(study.load) / measured(command).cpu_s
    if args.splitwise:
        peers.clean(args.splitwise)
        name = f"load_{len(study.load)}"
        command = peers.splitwise(
            args.splitwise, args.splitwise_python, study.load, name, study.peer_model, study.workers
        )
        rates["splitwise-sim"] = len(study.load) / measured(command).cpu_s
    return rates


def measured(command: peers.Command) -> Cost:
    """Run to the end; CPU is user and system time of that process and all that it waited for."""
    env = {**os.environ, "DYN_LOG": "error", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    if command.cwd != REPO:
        del env["PYTHONPATH"]
    with subprocess.Popen(
        command.words, cwd=command.cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as child:
        assert child.stdout is not None  # noqa: S101  # a pipe was asked for
        out = child.stdout.read()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(command.words[:4])} … ended with {child.returncode}: {out[-2000:]}")
    return Cost(used.ru_utime + used.ru_stime, out)


if __name__ == "__main__":
    main()
