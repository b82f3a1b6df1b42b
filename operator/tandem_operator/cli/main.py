"""The commands. Each reads its input, asks plan or simulate, and prints; nothing is decided here."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
import yaml
from rich.console import Console

from tandem_operator.cli import advice_data, report, resource, shapes
from tandem_operator.cli import plan as planning
from tandem_operator.cli import simulated as playing
from tandem_operator.cli import status as words
from tandem_operator.cli.rendered import rendered
from tandem_operator.loop.settings import Settings
from tandem_operator.plan.advice_words import verdict_words
from tandem_operator.plan.facts import Objective
from tandem_operator.plan.record import RecordError
from tandem_operator.plan.record import replay as replay_lines
from tandem_operator.simulate.run import Scenario, Simulation

if TYPE_CHECKING:
    from tandem_operator.api.v1alpha1 import DisaggregatedInference

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Disaggregated LLM inference on Kubernetes.")
out = Console(soft_wrap=True, highlight=False)
err = Console(stderr=True, soft_wrap=True, highlight=False)

LOAD = "Words like 'isl=512 osl=8 rps=2' (tokens, tokens, requests/s)"
File = Annotated[Path, typer.Option("--file", "-f", exists=True, dir_okay=False, help="YAML with the resource.")]
ConfigFlag = Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="The model's config.json.")]
SloFlag = Annotated[str, typer.Option(help="ttft,tpot,percentile: milliseconds, milliseconds, per cent.")]


class Output(StrEnum):
    """How `tandem plan` answers."""

    WORDS = "words"
    JSON = "json"
    YAML = "yaml"


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
    workload: Annotated[str, typer.Option(help=f"{LOAD}, or a trace: Azure's, Mooncake's or plain CSV, JSON lines.")],
    model: Annotated[str | None, typer.Option(help="A known model's shape; default: from spec.model.source.")] = None,
    config: ConfigFlag = None,
    accelerators: Annotated[str | None, typer.Option(help="Names with commas, or 'all'; default: the pools'.")] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="Budget; default: the resource's.")] = None,
    prefix_hits: Annotated[
        float | None, typer.Option(min=0, max=0.99, help="Cached share of the prompt tokens; default: the trace's.")
    ] = None,
    objective: Annotated[
        Objective | None, typer.Option(help="What a cheaper plan saves; default: the resource's.", case_sensitive=False)
    ] = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="words, the answer as JSON, or a resource.")] = (
        Output.WORDS
    ),
) -> None:
    """Disaggregate or not, on which GPUs, in which ratio, and how sure that is: from data sheets and the model."""
    try:
        wanted = resource.from_file(file)
        shape = shapes.shape_of(model or wanted.spec.model.source, wanted.spec.model.dtype, config)
        found = planning.consult(wanted.spec, shape, workload, accelerators, gpus, prefix_hits, objective)
        text = manifest(wanted, found) if output is Output.YAML else ""
    except (ValueError, LookupError, OSError) as error:
        fail(error)
    if output is Output.WORDS:
        out.print(planning.words(found), soft_wrap=False)
    else:
        typer.echo(text or json.dumps(advice_data.to_data(found), indent=1))


@app.command()
def render(
    file: File,
    worker_image: Annotated[str, typer.Option(help="The operator's image for workers.")] = Settings().worker_image,
    router_image: Annotated[str, typer.Option(help="The operator's image for routers.")] = Settings().router_image,
    allow: Annotated[str, typer.Option(help="The operator's TANDEM_TEMPLATE_ALLOW.")] = "",
) -> None:
    """What the operator would make of a resource, as YAML; nothing is asked of a cluster."""
    try:
        settings = Settings(worker_image=worker_image, router_image=router_image, template_allow=allow)
        made = rendered(resource.from_file(file), settings.images)
    except (ValueError, LookupError, OSError) as error:
        fail(error)
    typer.echo(yaml.safe_dump_all(made, sort_keys=False, width=120), nl=False)


def manifest(wanted: DisaggregatedInference, found: planning.Consultation) -> str:
    """The resource that carries the advice out; a plan that misses the SLO is none. Raises NoPlanError."""
    if not found.advice.is_feasible:
        raise planning.NoPlanError(verdict_words(found.advice))
    return advice_data.as_yaml(advice_data.resource_of(wanted, found), found)


@app.command()
def simulate(  # typer reads each as a flag
    workload: Annotated[list[str] | None, typer.Option(help=f"{LOAD}, for=seconds, cv=; repeat for phases.")] = None,
    trace: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Azure's, Mooncake's or plain CSV, JSON lines.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", exists=True, dir_okay=False)] = None,
    model: Annotated[str | None, typer.Option(help="A known model's shape.")] = None,
    config: ConfigFlag = None,
    workers: Annotated[str, typer.Option(help="Without -f: prefill:decode workers to begin with.")] = "1:2",
    slo: SloFlag = "1500,100,90",
    truth: Annotated[str | None, typer.Option(help="Hidden costs: 'prompt=1 step=30 slope=10' (ms).")] = None,
    slower: Annotated[float, typer.Option(min=0.01, help="Without --truth: the roofline's costs times this.")] = 1.5,
    seconds: Annotated[
        float | None, typer.Option(min=1, max=864_000, help="How long; default: the phases, or the whole trace.")
    ] = None,
    rate: Annotated[float, typer.Option(min=0.001, help="Play the trace so many times faster.")] = 1.0,
    seed: int = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a report with plots (one HTML file) here.")] = None,
    record: Annotated[Path | None, typer.Option(help="Write the decisions' records (JSON lines) here.")] = None,
) -> None:
    """Play a load against simulated workers under the operator's own planner."""
    try:
        limits, shape, engine = playing.simulated(file, model, config, workers, slo)
        arrivals, length = playing.offered(workload, trace, rate, seconds, seed)
        truths = playing.truths_of(limits, shape, truth, slower)
        window_s = max(30, 2 * limits.interval_s)
        case = Scenario(limits, shape, truths, window_s, engine=engine, records=record is not None)
        with playing.progress(err, arrivals, length) as told:
            run = Simulation(case, told).play(length)
        found = report.summary(run, limits.slo, length)
        if record is not None:
            record.write_text("".join(json.dumps(r) + "\n" for r in run.records), encoding="utf-8")
        if html is not None:
            report.write_html(html, run, limits.slo, found, playing.load_words(workload, trace, rate))
    except (ValueError, LookupError, OSError, ImportError) as error:
        fail(error)
    if as_json:
        typer.echo(json.dumps(found))
        return
    out.print(report.timeline(run))
    out.print(
        ", ".join(f"{k} {v}" for k, v in report.figures(found).items()) + f", moves {len(run.moves)}", markup=False
    )


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
