"""The commands. Each reads its input, asks plan or simulate, and prints; nothing is decided here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console

from tandem_operator.api.catalogue import CATALOGUE
from tandem_operator.api.spec_pool import Hardware
from tandem_operator.cli import plan as planning
from tandem_operator.cli import report, resource, scenario, shapes
from tandem_operator.cli import status as words
from tandem_operator.plan.facts import Slo
from tandem_operator.plan.limits import device_of, limits_of
from tandem_operator.plan.record import RecordError
from tandem_operator.plan.record import replay as replay_lines
from tandem_operator.simulate.run import Scenario, Simulation
from tandem_operator.simulate.workload import WorkloadError, parse_phase, poisson
from tandem_operator.simulate.workload import trace as read_trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tandem_operator.plan.facts import Limits, ModelShape
    from tandem_operator.simulate.worker import Request, Truth

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Disaggregated LLM inference on Kubernetes.")
out = Console(soft_wrap=True, highlight=False)
err = Console(stderr=True, soft_wrap=True, highlight=False)

LOAD = "Words like 'isl=512 osl=8 rps=2' (tokens, tokens, requests/s)"
File = Annotated[Path, typer.Option("--file", "-f", exists=True, dir_okay=False, help="YAML with the resource.")]
SloFlag = Annotated[str, typer.Option(help="ttft,tpot,percentile: milliseconds, milliseconds, per cent.")]


def fail(error: Exception | str) -> NoReturn:
    """One line of reason, exit code 2."""
    err.print(f"tandem: {error}", markup=False)
    raise typer.Exit(2)


@app.command()
def status(
    name: Annotated[str | None, typer.Argument(help="The resource; all of the namespace without it.")] = None,
    namespace: Annotated[str, typer.Option("--namespace", "-n")] = "default",
    context: Annotated[str | None, typer.Option(help="Context of the kubeconfig.")] = None,
) -> None:
    """Roles, ratio, TTFT and TPOT against their targets, and the last decision with its reason."""
    try:
        found = resource.from_cluster(namespace, name, context)
    except ValueError as error:
        fail(error)
    out.print(words.overview(found))
    if name is not None:
        for text in words.details(found[0]):
            out.print(text, markup=False)


@app.command()
def plan(
    file: File,
    workload: Annotated[str, typer.Option(help=LOAD)],
    model: Annotated[str | None, typer.Option(help="A known model's shape; default: from spec.model.source.")] = None,
) -> None:
    """The best split for a load before anything runs, by data sheets and the model's shape."""
    try:
        wanted = resource.from_file(file)
        limits = limits_of(wanted.spec)
        shape = shapes.find_shape(model or wanted.spec.model.source, wanted.spec.model.dtype)
        proposal = planning.propose(limits, shape, parse_phase(workload))
    except (ValueError, LookupError, OSError) as error:
        fail(error)
    out.print(planning.table_of(proposal, limits))
    out.print(planning.sentence(proposal, limits), markup=False)


@app.command()
def simulate(  # typer reads each as a flag
    workload: Annotated[list[str] | None, typer.Option(help=f"{LOAD}, for=seconds, cv=; repeat for phases.")] = None,
    trace: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="Azure trace (CSV).")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", exists=True, dir_okay=False)] = None,
    model: Annotated[str | None, typer.Option(help="A known model's shape.")] = None,
    workers: Annotated[str, typer.Option(help="Without -f: prefill:decode workers to begin with.")] = "1:2",
    slo: SloFlag = "1500,100,90",
    truth: Annotated[str | None, typer.Option(help="Hidden costs: 'prompt=1 step=30 slope=10' (ms).")] = None,
    slower: Annotated[float, typer.Option(min=0.01, help="Without --truth: the roofline's costs times this.")] = 1.5,
    seconds: Annotated[float | None, typer.Option(min=1, max=86_400, help="How long; default: the phases.")] = None,
    rate: Annotated[float, typer.Option(min=0.001, help="Play the trace so many times faster.")] = 1.0,
    seed: int = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    record: Annotated[Path | None, typer.Option(help="Write the decisions' records (JSON lines) here.")] = None,
) -> None:
    """Play a load against simulated workers under the operator's own planner."""
    try:
        limits, shape = simulated(file, model, workers, slo)
        arrivals, length, context = offered(workload, trace, rate, seconds, seed)
        truths = truths_of(limits, shape, context, truth, slower)
        run = Simulation(Scenario(limits, shape, truths, window_s=max(30, 2 * limits.interval_s)), arrivals).play(
            length
        )
        if record is not None:
            record.write_text("".join(json.dumps(r) + "\n" for r in run.records), encoding="utf-8")
    except (ValueError, LookupError, OSError) as error:
        fail(error)
    found = report.summary(run, limits.slo, length)
    if as_json:
        typer.echo(json.dumps(found))
        return
    out.print(report.timeline(run))
    figures = {k: v for k, v in found.items() if k not in {"moves", "timeline"}}
    out.print(", ".join(f"{k} {v}" for k, v in figures.items()) + f", moves {len(run.moves)}", markup=False)


def simulated(file: Path | None, model: str | None, workers: str, slo: str) -> tuple[Limits, ModelShape]:
    """Limits and shape of the resource, or of a small cluster of CPU workers."""
    if file is not None:
        spec = resource.from_file(file).spec
        return limits_of(spec), shapes.find_shape(model or spec.model.source, spec.model.dtype)
    prefill, _, decode = workers.partition(":")
    ttft, tpot, percent = (int(x) for x in slo.split(","))
    device = device_of(Hardware(accelerator="cpu"), "bfloat16", CATALOGUE)
    limits = scenario.small_limits(int(prefill), int(decode), Slo(ttft, tpot, percent), 5, device)
    return limits, shapes.find_shape(model or "smollm2-135m")


def offered(
    workload: list[str] | None, trace: Path | None, rate: float, seconds: float | None, seed: int
) -> tuple[Iterator[Request], float, int]:
    """The arrivals, how long the run takes, and the mean context in tokens."""
    if (trace is None) == (not workload):
        raise WorkloadError("give either --workload or --trace")
    if trace is not None:
        length = seconds or 600.0
        prompts = [r.prompt + r.output // 2 for r in read_trace(trace, rate, length)]
        return read_trace(trace, rate, length), length, sum(prompts) // max(len(prompts), 1)
    phases = [parse_phase(text) for text in workload or []]
    context = sum(p.isl + p.osl // 2 for p in phases) // len(phases)
    return poisson(phases, seed), seconds or sum(p.seconds for p in phases), context


def truths_of(limits: Limits, shape: ModelShape, context: int, truth: str | None, slower: float) -> dict[str, Truth]:
    """By pool: the costs that were given, or the roofline's, slower."""
    if truth is not None:
        return {p.name: scenario.parse_truth(truth) for p in limits.pools}
    return {p.name: scenario.roofline_truth(p, shape, context, slower) for p in limits.pools}


@app.command()
def replay(file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="Records, JSON lines.")]) -> None:
    """Decide recorded observations again; exit code 1 if a decision differs from the recorded one."""
    try:
        with file.open(encoding="utf-8") as lines:
            mismatches = replay_lines(lines)
    except (RecordError, OSError) as error:
        fail(error)
    for found in mismatches:
        then, now = found.recorded, found.replayed
        out.print(f"line {found.line}: recorded {then.action} {then.reason}: {then.message}", markup=False)
        out.print(f"line {found.line}: replayed {now.action} {now.reason}: {now.message}", markup=False)
    out.print(f"{len(mismatches)} decisions differ")
    if mismatches:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
