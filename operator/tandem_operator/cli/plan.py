"""`tandem plan`: from a resource and a workload to the advisor's question, and the answer as a person reads it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group as Lines
from rich.markup import escape
from rich.table import Table

from tandem_operator.api.catalogue import CATALOGUE
from tandem_operator.api.engines import ENGINES
from tandem_operator.api.spec_pool import Hardware
from tandem_operator.plan.advice_words import arithmetic, crossing_words, signals, sureness_words, verdict_words
from tandem_operator.plan.advise import Advice, advise, look_at
from tandem_operator.plan.crossing import crossings
from tandem_operator.plan.engine_args import chunk_of
from tandem_operator.plan.facts import Objective, Slo
from tandem_operator.plan.kinds import DEGREES, Kind, kinds_of
from tandem_operator.plan.limits import device_of, max_batch_of
from tandem_operator.plan.roofline import prior_of
from tandem_operator.plan.sizing import Group, Mode, Plan, Question
from tandem_operator.plan.words import ms_words
from tandem_operator.simulate import profile, traces
from tandem_operator.simulate.workload import WorkloadError, parse_phase

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from tandem_operator.api.spec import Spec
    from tandem_operator.plan.advise import Outlook
    from tandem_operator.plan.crossing import Crossing
    from tandem_operator.plan.facts import Device, ModelShape
    from tandem_operator.plan.traffic import Traffic


LABEL_WIDTH = 12  # so that the grids stand below each other


class NoPlanError(ValueError):
    """The budget does not allow a single worker."""


@dataclass(frozen=True, slots=True)
class Consultation:
    """What was asked and found out; `written`: the plan as the resource has it, None where that cannot be judged."""

    spec: Spec
    question: Question
    advice: Advice
    turns: tuple[Crossing, ...]
    written: Outlook | None


def consult(  # one argument a flag
    spec: Spec,
    shape: ModelShape,
    workload: str,
    accelerators: str | None = None,
    gpus: int | None = None,
    hits: float | None = None,
    objective: Objective | None = None,
) -> Consultation:
    """Ask the advisor.

    Raises WorkloadError, NoFitError, NoPlanError, UnknownAcceleratorError or UnknownDTypeError, each one sentence.
    """
    devices = devices_of(spec, accelerators)
    traffic = traffic_of(workload, 0)
    if hits is not None:
        traffic = replace(traffic, hits=hits)
    question = Question(
        kinds=kinds_of(devices, shape, traffic.longest_tokens, degrees_of(spec)),
        traffic=traffic,
        slo=Slo(spec.slo.ttft_milliseconds, spec.slo.tpot_milliseconds, spec.slo.percentile),
        max_batch=max_batch_of(spec.engine.args, spec.engine.name),
        budget_gpus=gpus or budget_of(spec),
        budget_per_device=dict(spec.rebalance.budget.per_accelerator),
        objective=objective or Objective(spec.rebalance.objective),
    )
    advice = advise(question)
    if advice is not None and hits is None and traffic.reuse is not None:
        # How much a prefix cache hits depends on its room, which is the chosen worker's.
        room = round(advice.best.plan.groups[0].kind.prior.kv_room_tokens)
        question = replace(question, traffic=traffic_of(workload, room))
        advice = advise(question)
    if advice is None:
        least = min(k.gpus for k in question.kinds)
        raise NoPlanError(f"the budget of {question.budget_gpus} GPUs allows no worker; the smallest takes {least}")
    longest = max(spec.model.max_context - round(traffic.output.mean), round(traffic.prompt.mean))
    turns = crossings(question, longest)
    written = written_plan(spec, shape, devices)
    return Consultation(spec, question, advice, turns, look_at(known(question, written), written) if written else None)


def known(question: Question, plan: Plan) -> Question:
    """The question with the plan's kinds among its own, so that the plan can be looked at."""
    return replace(question, kinds=tuple({*question.kinds, *(group.kind for group in plan.groups)}))


def degrees_of(spec: Spec) -> tuple[int, ...]:
    """GPUs that the engine can put a worker on, in pools of different degrees."""
    in_place = spec.engine.name == "tandem" and spec.transfer.backend != "tcp"
    return DEGREES if "tensor" in ENGINES[spec.engine.name].degrees and not in_place else DEGREES[:1]


def devices_of(spec: Spec, accelerators: str | None) -> list[Device]:
    """Those of the resource's pools; those named (`h100-sxm,h200-sxm`); or `all` GPUs that have the model's dtype."""
    dtype = spec.model.dtype
    if accelerators is None:
        found = [device_of(pool.hardware, dtype, CATALOGUE) for pool in spec.pools]
        return list({device.name: device for device in found}.values())
    names = [name.strip() for name in accelerators.split(",")]
    if names == ["all"]:
        names = [entry.name for entry in CATALOGUE.values() if entry.resource and dtype in entry.flops]
    return [device_of(Hardware(accelerator=name), dtype, CATALOGUE) for name in names]


def budget_of(spec: Spec) -> int:
    """`rebalance.budget.gpus`, or all that the pools' maxima together take."""
    return spec.rebalance.budget.gpus or sum(pool.replicas.max * pool.parallelism.gpus for pool in spec.pools)


def traffic_of(workload: str, cache_tokens: int) -> Traffic:
    """The traffic of words (`isl=3000 osl=150 rps=20`) or of a trace's file."""
    if "=" in workload and not Path(workload).exists():
        phase = parse_phase(workload)
        if phase.rps <= 0:
            raise WorkloadError(f"{workload!r}: rps is 0; without traffic there is nothing to size")
        return profile.of_phase(phase)
    if not Path(workload).is_file():
        raise WorkloadError(f"{workload}: no such file, and no words like 'isl=3000 osl=150 rps=20'")
    return profile.of_requests(traces.read(Path(workload)), cache_tokens)


def written_plan(spec: Spec, shape: ModelShape, devices: list[Device]) -> Plan | None:
    """The resource's own pools at their initial counts; None unless it is one pool a role, on devices in question."""
    own = {device.name: device for device in devices}
    by_role = {pool.role: pool for pool in spec.pools}
    roles = ("Both",) if set(by_role) == {"Both"} else ("Prefill", "Decode")
    pools = [by_role[role] for role in roles if role in by_role and by_role[role].hardware.accelerator in own]
    if len(pools) != len(roles) or len(pools) != len(spec.pools) or any(pool.replicas.start < 1 for pool in pools):
        return None
    sized = [(own[pool.hardware.accelerator], pool.parallelism.gpus, pool.replicas.start) for pool in pools]
    groups = tuple(Group(Kind(device, n, prior_of(device, n, shape)), count) for device, n, count in sized)
    chunk = chunk_of(spec.engine.name, spec.engine.args)
    if len(groups) == 1:
        return None if chunk is None else Plan(groups, chunk)
    return Plan(groups)


def words(found: Consultation) -> RenderableType:
    """The whole answer for a terminal."""
    advice, question = found.advice, found.question
    parts: list[RenderableType] = [verdict_words(advice), "", table_of(found), "", grid(signals(advice))]
    for outlook in (advice.best, advice.other):
        if outlook is not None:
            parts += ["", f"The arithmetic of the {str(outlook.plan.mode).lower()} plan, by the data sheet:"]
            parts.append(grid(arithmetic(question, outlook.plan)))
    turns = [("turns", text) for text in crossing_words(found.turns, question.traffic)]
    return Lines(*parts, "", grid([("how sure", sureness_words(advice)), *turns]))


def grid(lines: Iterable[tuple[str, str]]) -> Table:
    """What each sentence is about at the left, the sentence at the right."""
    found = Table.grid(padding=(0, 2))
    found.add_column(no_wrap=True, style="bold", min_width=LABEL_WIDTH)
    found.add_column()
    for name, text in lines:
        found.add_row(name, escape(text))
    return found


def table_of(found: Consultation) -> Table:
    """A column for the answer, the best of the other mode, and the resource as it is written."""
    advice = found.advice
    columns = [("best", advice.best), ("other", advice.other), ("as written", found.written)]
    shown = [(name, outlook) for name, outlook in columns if outlook is not None]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", style="bold", no_wrap=True)
    for name, outlook in shown:
        table.add_column(f"{name}: {str(outlook.plan.mode).lower()}")
    for row in zip(names_of(found.question.slo), *(cells(o, found.question) for _, o in shown), strict=True):
        table.add_row(*row)
    return table


def names_of(slo: Slo) -> list[str]:
    """What the rows of the table show."""
    p = slo.percentile
    costs = ("GPUS", "$ AN HOUR", "$ A MILLION TOKENS", "KILOWATTS")
    return ["WORKERS", "PREFILL:DECODE", *costs, f"TTFT P{p}", f"TPOT P{p}", "ATTAINMENT", "... 1σ SLOW", "GOODPUT"]


def cells(outlook: Outlook, question: Question) -> list[str]:
    """One plan's figures, in the order of `names_of`."""
    plan, forecast, per_million = outlook.plan, outlook.expected, usd_per_million(outlook, question)
    ratio = "-" if plan.mode is Mode.COLOCATED else ":".join(str(group.workers) for group in plan.groups)
    return [
        workers_words(plan),
        ratio,
        str(plan.gpus),
        "-" if outlook.usd_per_hour is None else f"{outlook.usd_per_hour:,.2f}",
        "-" if per_million is None else f"{per_million:.2f}",
        "-" if outlook.watts is None else f"{outlook.watts / 1000:.1f}",
        ms_words(forecast.prefill.latency_ms),
        ms_words(forecast.decode.latency_ms),
        f"{100 * forecast.attainment:.1f} %",
        f"{100 * outlook.sure:.1f} %",
        f"{outlook.goodput:.2f} requests/s",
    ]


def workers_words(plan: Plan) -> str:
    """`2 of 4 × h100-sxm + 3 of 4 × h200-sxm`: each role's workers."""
    names = " + ".join(f"{group.workers} of {group.kind.name}" for group in plan.groups)
    return names if plan.chunk_tokens is None else f"{names}, chunks of {plan.chunk_tokens:,}"


def usd_per_million(outlook: Outlook, question: Question) -> float | None:
    """USD for a million tokens, prompt and output together, at the rate that the plan is sized for."""
    traffic = question.traffic
    tokens_per_hour = 3600 * traffic.sized_rate * (traffic.prompt.mean + traffic.output.mean)
    return None if outlook.usd_per_hour is None else 1e6 * outlook.usd_per_hour / tokens_per_hour
