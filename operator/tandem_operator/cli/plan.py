"""`tandem plan`: the best split for a load before anything runs, from data sheets alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table

from tandem_operator.plan.calibrate import UNCALIBRATED
from tandem_operator.plan.candidates import candidates, clamp
from tandem_operator.plan.desk import Desk
from tandem_operator.plan.predict import Load, Model
from tandem_operator.plan.words import bottleneck_words, forecast_words, move_words, ms_words

if TYPE_CHECKING:
    from tandem_operator.plan.desk import Option
    from tandem_operator.plan.facts import Limits, ModelShape, Target
    from tandem_operator.simulate.workload import Phase

SHOWN = 8


class NoPlanError(ValueError):
    """The bounds of the resource contradict each other."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """The best target for a load, the initial one, and the runners-up."""

    best: Option
    start: Option
    others: tuple[Option, ...]
    is_feasible: bool
    load: Load


def propose(limits: Limits, shape: ModelShape, phase: Phase) -> Proposal:
    """The cheapest plan of all allowed ones that keeps the SLO by the roofline; else the one that comes closest."""
    start = clamp(limits, {p.name: p.initial for p in limits.pools})
    if start is None:
        raise NoPlanError("pools' minima, roles' minima and the GPU budget contradict each other: no plan is allowed")
    load = Load(phase.rps, float(phase.isl), float(phase.isl), float(phase.osl))
    desk = Desk(limits, shape, load, Model(UNCALIBRATED, UNCALIBRATED, limits.max_batch), limits.slo)
    options = [desk.weigh(target, start) for target in candidates(limits, start)]
    wanted = limits.slo.percentile / 100
    feasible = [o for o in options if o.sure >= wanted]
    if feasible:
        ranked = sorted(feasible, key=lambda o: (o.cost, o.change, -o.sure))
    else:
        ranked = sorted(options, key=lambda o: (-round(o.sure, 2), round(o.forecast.overload, 2), o.cost, o.change))
    others = tuple(ranked[1:SHOWN])
    return Proposal(ranked[0], desk.weigh(start, start), others, bool(feasible), load)


def table_of(proposal: Proposal, limits: Limits) -> Table:
    """The best plan, its runners-up and the initial one, with what each would give."""
    p = limits.slo.percentile
    table = Table("", "PREFILL:DECODE", "POOLS", "GPUS", f"TTFT P{p}", f"TPOT P{p}", "ATTAINMENT (1σ LOW)", box=None)
    rows = [("best", proposal.best), *(("", o) for o in proposal.others), ("initial", proposal.start)]
    for name, option in rows:
        target, forecast = option.target, option.forecast
        pools = ", ".join(f"{pool} {count}" for pool, count in target.pools.items())
        share = f"{100 * forecast.attainment:.0f} % ({100 * option.sure:.0f} %)"
        ttft, tpot = ms_words(forecast.prefill.latency_ms), ms_words(forecast.decode.latency_ms)
        table.add_row(name, f"{target.prefill}:{target.decode}", pools, str(option.gpus), ttft, tpot, share)
    return table


def sentence(proposal: Proposal, limits: Limits) -> str:
    """The answer in one sentence."""
    best = proposal.best
    verdict = "meets the SLO" if proposal.is_feasible else "no allowed plan meets the SLO; the closest"
    move = move_words(proposal.start.target, best.target)
    words = f"{split_words(best.target)} {verdict}: predicted {forecast_words(best.forecast, limits.slo)}"
    return f"{words}; {bottleneck_words(best.forecast, proposal.load)}; from initial: {move}"


def split_words(target: Target) -> str:
    """`prefill 2, decode 4`."""
    return f"prefill {target.prefill}, decode {target.decode}"
