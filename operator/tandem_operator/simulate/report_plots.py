"""A run as plots (SVG): attainment, latencies, workers by role, queue and utilisation over time, moves numbered."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tandem_operator.plan.facts import Role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from tandem_operator.plan.facts import Slo
    from tandem_operator.simulate.run import Run

PREFILL, DECODE, NEUTRAL, MOVE, TARGET = "#1f6fb2", "#d9731a", "#3d7a57", "#6b7280", "#b42318"
COLORS = {Role.PREFILL: PREFILL, Role.DECODE: DECODE, Role.BOTH: NEUTRAL}
INCHES = (10.0, 11.5)
# Text stays text, and nothing in the file depends on when or in which process it was made.
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tandem",
    "font.family": "sans-serif",
    "font.sans-serif": ["system-ui", "DejaVu Sans", "sans-serif"],
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9ca3af",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#e5e7eb",
    "axes.axisbelow": True,
}
MOST_NUMBERS = 40  # more moves than this are lines without a number


def svg(run: Run, slo: Slo) -> str:
    """The plots as one `<svg>` element; the same run gives the same text."""
    minutes = [tick.at / 60 for tick in run.ticks]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=INCHES, layout="constrained")
        axes = figure.subplots(len(PANELS), 1, sharex=True)
        for axis, panel in zip(axes, PANELS, strict=True):
            panel(axis, run, slo, minutes)
            axis.margins(x=0.01)
        mark_moves(axes, run)
        axes[-1].set_xlabel("minutes")
        text = StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    found = text.getvalue()
    return found[found.index("<svg") :]


def attainment(axis: Axes, run: Run, slo: Slo, minutes: list[float]) -> None:
    """Share of the requests of each interval that met both targets."""
    values = [percent(tick.attainment) for tick in run.ticks]
    axis.plot(minutes, values, color=NEUTRAL, linewidth=1.4)
    axis.fill_between(minutes, values, color=NEUTRAL, alpha=0.12, linewidth=0)
    target(axis, slo.percentile, f"wanted {slo.percentile} %")
    axis.set_ylim(0, 105)
    title(axis, "SLO attainment of each interval, %", pad=20.0)  # above the numbers of the moves


def latencies(axis: Axes, run: Run, slo: Slo, minutes: list[float]) -> None:
    """TTFT and TPOT at the percentile as shares of their targets, on a logarithmic axis."""
    windows = [tick.window for tick in run.ticks]
    for name, color, values, wanted in (
        ("TTFT", PREFILL, [w.ttft_ms for w in windows], slo.ttft_ms),
        ("TPOT", DECODE, [w.tpot_ms for w in windows], slo.tpot_ms),
    ):
        shares = [float("nan") if ms is None or ms <= 0 else ms / wanted for ms in values]
        axis.plot(minutes, shares, color=color, linewidth=1.4, label=f"{name} p{slo.percentile} ÷ {wanted:,} ms")
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    target(axis, 1.0, "")
    legend(axis)
    title(axis, "latency, times its target (last window)")


def workers(axis: Axes, run: Run, slo: Slo, minutes: list[float]) -> None:  # noqa: ARG001
    """Serving workers of each role."""
    for role in roles_of(run):
        values = [tick.roles[role] for tick in run.ticks]
        axis.step(minutes, values, where="post", color=COLORS[role], linewidth=1.8, label=str(role))
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_ylim(bottom=0)
    legend(axis)
    title(axis, "serving workers by role (the ratio)")


def queue(axis: Axes, run: Run, slo: Slo, minutes: list[float]) -> None:  # noqa: ARG001
    """Requests without their first token."""
    values = [tick.queue for tick in run.ticks]
    axis.fill_between(minutes, values, color=MOVE, alpha=0.3, linewidth=0, step="post")
    axis.step(minutes, values, where="post", color=MOVE, linewidth=1.0)
    axis.set_ylim(bottom=0)
    title(axis, "prompts that wait or are under way")


def utilisation(axis: Axes, run: Run, slo: Slo, minutes: list[float]) -> None:  # noqa: ARG001
    """Share of each role's time that was busy."""
    for role in roles_of(run):
        values = [min(percent(tick.utilisation[role]), 100.0) for tick in run.ticks]
        axis.plot(minutes, values, color=COLORS[role], linewidth=1.4, label=str(role))
    axis.set_ylim(0, 105)
    legend(axis)
    title(axis, "utilisation by role, % of the workers' time")


def roles_of(run: Run) -> list[Role]:
    """Roles that any worker had."""
    return [role for role in COLORS if any(tick.roles.get(role) for tick in run.ticks)]


PANELS = (attainment, latencies, workers, queue, utilisation)


def mark_moves(axes: Sequence[Axes], run: Run) -> None:
    """A line through all panels at each move, with its number in the list below."""
    for number, tick in enumerate(run.moves, start=1):
        at = tick.at / 60
        for axis in axes:
            axis.axvline(at, color=MOVE, linewidth=0.8, linestyle=(0, (2, 2)))
        if number <= MOST_NUMBERS:
            axes[0].annotate(
                str(number),
                (at, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=8,
                color="white",
                bbox={"boxstyle": "circle,pad=0.25", "facecolor": MOVE, "edgecolor": "none"},
            )


def target(axis: Axes, value: float, words: str) -> None:
    """The target as a dashed line."""
    axis.axhline(value, color=TARGET, linewidth=1.0, linestyle="--")
    if words:
        axis.annotate(
            words,
            (1.0, value),
            xycoords=("axes fraction", "data"),
            xytext=(-2, -3),
            textcoords="offset points",
            ha="right",
            va="top",
            fontsize=8,
            color=TARGET,
        )


def title(axis: Axes, words: str, pad: float = 6.0) -> None:
    """What the panel shows, at its upper left, so many points above it."""
    axis.set_title(words, loc="left", fontsize=10, fontweight="bold", pad=pad)


def legend(axis: Axes) -> None:
    """Above the panel at the right, where no line runs; none where nothing is drawn."""
    if not axis.get_legend_handles_labels()[0]:
        return
    axis.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, frameon=False, fontsize=8.5, borderaxespad=0.1)


def percent(share: float | None) -> float:
    """NaN, a gap in the line, for what is not known."""
    return float("nan") if share is None else 100 * share
