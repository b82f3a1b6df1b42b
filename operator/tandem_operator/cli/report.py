"""What a simulation showed: as a table for people, as JSON for programs."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING, Any

from rich.table import Table

from tandem_operator.plan.facts import Action
from tandem_operator.simulate.observe import to_ms
from tandem_operator.simulate.quantile import percentile

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tandem_operator.plan.facts import Slo
    from tandem_operator.simulate.run import Run, Tick


def summary(run: Run, slo: Slo, seconds: float) -> dict[str, Any]:
    """The run's figures; SLO attainment stands beside goodput per GPU, so that neither can be bought with the other."""
    book = run.ledger
    share = book.attainment()
    gpus = run.gpu_seconds / seconds if seconds > 0 else 0.0
    good = 0.0 if share is None else share * len(book) / seconds
    return {
        "requests_arrived": run.arrived,
        "requests_finished": len(book),
        "attainment": share,
        "goodput_per_second": round(good, 4),
        "goodput_per_gpu": round(good / gpus, 4) if gpus else None,
        "mean_gpus": round(gpus, 3),
        "ttft_ms": to_ms(percentile([s for s in book.ttft if not isnan(s)], slo.percentile)),
        "tpot_ms": to_ms(percentile([s for s in book.tpot if not isnan(s)], slo.percentile)),
        "percentile": slo.percentile,
        "preempted": run.preempted,
        "moves": [move(t) for t in run.moves],
        "timeline": [line(t) for t in run.ticks],
    }


def figures(found: Mapping[str, Any]) -> dict[str, Any]:
    """The summary's single figures: all but its lists."""
    return {name: value for name, value in found.items() if name not in {"moves", "timeline"}}


def write_html(path: Path, run: Run, slo: Slo, found: Mapping[str, Any], load: str) -> None:
    """The report with plots. Raises ImportError, with what to install, where matplotlib is missing; OSError."""
    try:
        from tandem_operator.simulate.report_html import html  # noqa: PLC0415  # plots are an extra
    except ImportError as error:
        raise ImportError(f"--html needs plots ({error}); install tandem-serving[simulate]") from error
    path.write_text(html(run, slo, figures(found), load), encoding="utf-8")


def move(tick: Tick) -> dict[str, Any]:
    """A decision that changed something."""
    target = tick.decision.target
    return {
        "at": tick.at,
        "action": str(tick.decision.action),
        "reason": tick.decision.reason,
        "message": tick.decision.message,
        "prefill": target.prefill,
        "decode": target.decode,
        "pools": dict(target.pools),
    }


def line(tick: Tick) -> dict[str, Any]:
    """One interval."""
    seen = tick.window
    return {
        "at": tick.at,
        "prefill": seen.prefill_workers,
        "decode": seen.decode_workers,
        "arrivals_per_second": seen.arrival_rate,
        "ttft_ms": seen.ttft_ms,
        "tpot_ms": seen.tpot_ms,
        "waiting": tick.queue,
        "attainment": tick.attainment,
        "action": str(tick.decision.action),
        "reason": tick.decision.reason,
    }


def timeline(run: Run) -> Table:
    """Every interval in which something changed, and each twelfth of the rest."""
    table = Table("SECOND", "P:D", "REQ/S", "TTFT MS", "TPOT MS", "ATTAINMENT", "DECISION", box=None)
    last = ""
    for number, tick in enumerate(run.ticks):
        seen, decision = tick.window, tick.decision
        words = f"{decision.action} {decision.reason}"
        if words == last and number % 12:
            continue
        last = words
        share = "-" if seen.attainment is None else f"{100 * seen.attainment:.0f} %"
        text = words if decision.action is Action.HOLD else f"{words}: {decision.message}"
        cells = (f"{seen.arrival_rate or 0:.2f}", figure(seen.ttft_ms), figure(seen.tpot_ms), share, text)
        table.add_row(f"{tick.at:.0f}", f"{seen.prefill_workers}:{seen.decode_workers}", *cells)
    return table


def figure(value: int | None) -> str:
    """`1,020`, or `-` where nothing is known."""
    return "-" if value is None else f"{value:,}"
