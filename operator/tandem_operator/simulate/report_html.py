"""A run as one HTML file that needs nothing else: plots, figures, and every move with its reason and alternatives."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from tandem_operator.simulate.report_plots import svg

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tandem_operator.plan.facts import Alternative, Decision, Slo
    from tandem_operator.simulate.run import Run, Tick

STYLE = """
body { font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; color: #1f2937; background: #fff; max-width: 62rem;
  margin: 2rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2.25rem 0 .5rem; }
p.lead { color: #4b5563; margin: .25rem 0 1.5rem; }
dl.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: .75rem; margin: 0; }
dl.figures div { border: 1px solid #e5e7eb; border-radius: .5rem; padding: .5rem .75rem; }
dt { color: #6b7280; font-size: .8rem; } dd { margin: 0; font-size: 1.15rem; font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; display: block; }
div.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; }
th, td { text-align: left; vertical-align: top; padding: .4rem .75rem .4rem 0; border-bottom: 1px solid #e5e7eb; }
th { color: #6b7280; font-weight: 500; white-space: nowrap; }
td.n { white-space: nowrap; font-variant-numeric: tabular-nums; }
b.number { display: inline-block; min-width: 1.4em; text-align: center; border-radius: 1em; background: #6b7280;
  color: #fff; font-size: .8rem; }
details { margin-top: .25rem; color: #4b5563; } summary { cursor: pointer; }
"""
TITLE = "Tandem simulation"
NAMES = {
    "ttft_ms": "TTFT p{p}, ms",
    "tpot_ms": "TPOT p{p}, ms",
    "preempted": "thrown out of full memory",
    "mean_gpus": "GPUs on average",
    "goodput_per_second": "goodput, requests/s",
    "goodput_per_gpu": "goodput per GPU",
}
MOST_MOVES = 500  # a list longer than this is for a program: --json has all of it


def html(run: Run, slo: Slo, figures: Mapping[str, Any], load: str) -> str:
    """The report. `figures`: name → value as the JSON output has them; None is shown as unknown. `load`: its words."""
    moves = run.moves
    boxes = "".join(figure(name, value, slo) for name, value in figures.items() if name != "percentile")
    parts = [
        f"<h1>{TITLE}</h1>",
        f'<p class="lead">{escape(load)}<br>{escape(lead(run, slo))}</p>',
        f'<dl class="figures">{boxes}</dl>',
        "<h2>Over time</h2>",
        svg(run, slo),
        f"<h2>Moves ({len(moves)})</h2>",
        moves_table(moves) if moves else "<p>The planner changed nothing after the first target.</p>",
    ]
    head = f'<meta charset="utf-8"><title>{TITLE}: {escape(load)}</title><style>{STYLE}</style>'
    view = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    body = "\n".join(parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}{view}</head>\n<body>\n{body}\n</body></html>\n'


def lead(run: Run, slo: Slo) -> str:
    """What was asked of the run, in one sentence."""
    minutes = run.ticks[-1].at / 60 if run.ticks else 0.0
    targets = f"TTFT {slo.ttft_ms:,} ms and TPOT {slo.tpot_ms:,} ms for {slo.percentile} % of the requests"
    return f"{run.arrived:,} requests arrived in {minutes:.1f} simulated minutes; wanted: {targets}."


def figure(name: str, value: object, slo: Slo) -> str:
    """One figure in its box."""
    words = NAMES.get(name, name.replace("_", " ")).format(p=slo.percentile)
    return f"<div><dt>{escape(words)}</dt><dd>{escape(shown(name, value))}</dd></div>"


def shown(name: str, value: object) -> str:
    """`97.3 %`, `1,020`, `unknown`."""
    if value is None:
        return "unknown"
    if name == "attainment" and isinstance(value, int | float):
        return f"{100 * value:.1f} %"
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def moves_table(moves: Iterable[Tick]) -> str:
    """Every move: when, to what, why, and what else was weighed."""
    listed = list(moves)
    rows = "".join(move_row(number, tick) for number, tick in enumerate(listed[:MOST_MOVES], start=1))
    names = ("", "Time", "Move", "Prefill:decode", "Why")
    head = "".join(f"<th>{name}</th>" for name in names)
    more = len(listed) - MOST_MOVES
    rest = f"<p>{more:,} more; the JSON output has all of them.</p>" if more > 0 else ""
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{rest}'


def move_row(number: int, tick: Tick) -> str:
    """One move."""
    decision = tick.decision
    target = decision.target
    minutes, seconds = divmod(round(tick.at), 60)
    return (
        f'<tr><td><b class="number">{number}</b></td><td class="n">{minutes}:{seconds:02d}</td>'
        f'<td class="n">{escape(str(decision.action))}<br>{escape(decision.reason)}</td>'
        f'<td class="n">{target.prefill}:{target.decode}</td>'
        f"<td>{escape(decision.message)}{others(decision)}</td></tr>"
    )


def others(decision: Decision) -> str:
    """The alternatives that were not taken."""
    rejected = [a for a in decision.alternatives if a.rejected]
    if not rejected:
        return ""
    items = "".join(f"<li>{escape(other(a))}</li>" for a in rejected)
    return f"<details><summary>not taken: {len(rejected)}</summary><ul>{items}</ul></details>"


def other(alternative: Alternative) -> str:
    """`1:2 on 3 GPUs: attainment 12 % …`."""
    target = alternative.target
    gpus = f"{alternative.gpus} GPU{'' if alternative.gpus == 1 else 's'}"
    return f"{target.prefill}:{target.decode} on {gpus}: {alternative.rejected}"
