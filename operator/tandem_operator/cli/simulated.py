"""What `tandem simulate` plays: the resource, the arrivals with their length, and how far the run has come."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tandem_operator.api.catalogue import CATALOGUE
from tandem_operator.api.spec_pool import Hardware
from tandem_operator.cli import resource, scenario, shapes
from tandem_operator.plan.engine_args import chunk_of
from tandem_operator.plan.facts import Slo
from tandem_operator.plan.limits import device_of, limits_of
from tandem_operator.simulate import traces
from tandem_operator.simulate.truth import Engine
from tandem_operator.simulate.workload import WorkloadError, parse_phase, poisson

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rich.console import Console

    from tandem_operator.plan.facts import Limits, ModelShape
    from tandem_operator.simulate.request import Request
    from tandem_operator.simulate.truth import Truth

REFRESH_S = 1.0  # simulated seconds between two looks at the bar


def simulated(
    file: Path | None, model: str | None, config: Path | None, workers: str, slo: str
) -> tuple[Limits, ModelShape, Engine]:
    """Limits, shape and engine of the resource, or of a small cluster of CPU workers."""
    if file is not None:
        spec = resource.from_file(file).spec
        shape = shapes.shape_of(model or spec.model.source, spec.model.dtype, config)
        chunk = chunk_of(spec.engine.name, spec.engine.args)
        return limits_of(spec), shape, Engine() if chunk is None else Engine(chunk_tokens=chunk)
    prefill, _, decode = workers.partition(":")
    ttft, tpot, percent = (int(x) for x in slo.split(","))
    device = device_of(Hardware(accelerator="cpu"), "bfloat16", CATALOGUE)
    limits = scenario.small_limits(int(prefill), int(decode), Slo(ttft, tpot, percent), 5, device)
    return limits, shapes.shape_of(model or "smollm2-135m", "bfloat16", config), Engine()


def offered(
    workload: list[str] | None, trace: Path | None, rate: float, seconds: float | None, seed: int
) -> tuple[Iterator[Request], float]:
    """The arrivals, and how long the run takes.

    A trace whose length nobody gave is read twice, so that it is never held in memory.
    """
    if (trace is None) == (not workload):
        raise WorkloadError("give either --workload or --trace")
    if trace is not None:
        last = 0.0
        for request in traces.read(trace, rate) if seconds is None else ():
            last = request.arrived
        length = seconds or max(last, 1.0)
        return traces.read(trace, rate, length), length
    phases = [parse_phase(text) for text in workload or []]
    return poisson(phases, seed), seconds or sum(p.seconds for p in phases)


def load_words(workload: list[str] | None, trace: Path | None, rate: float) -> str:
    """What was played, as the report's heading says it."""
    if trace is None:
        return "; ".join(workload or [])
    return trace.name if rate == 1 else f"{trace.name} at {rate:g} times its speed"


def truths_of(limits: Limits, shape: ModelShape, truth: str | None, slower: float) -> dict[str, Truth]:
    """By pool: the costs that were given, or the roofline's, slower. Raises NoFitError where a pool cannot hold it."""
    if truth is not None:
        return {p.name: scenario.parse_truth(truth) for p in limits.pools}
    return {p.name: scenario.roofline_truth(p, shape, slower) for p in limits.pools}


@contextmanager
def progress(console: Console, arrivals: Iterator[Request], seconds: float) -> Iterator[Iterator[Request]]:
    """The same arrivals; on a terminal, a bar shows how much of the simulated time they have covered."""
    if not console.is_terminal:
        yield arrivals
        return
    columns = (TextColumn("simulating"), BarColumn(), TextColumn("{task.fields[clock]}"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=seconds, clock="")

        def told() -> Iterator[Request]:
            shown = -REFRESH_S
            for request in arrivals:
                if request.arrived >= shown + REFRESH_S:
                    shown = request.arrived
                    bar.update(task, completed=shown, clock=f"{shown:,.0f} of {seconds:,.0f} s")
                yield request

        yield told()
