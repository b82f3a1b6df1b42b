"""A decision's sentence: numbers that an engineer can check."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem_operator.plan.facts import Alternative

if TYPE_CHECKING:
    from tandem_operator.plan.desk import Option
    from tandem_operator.plan.facts import Slo, Target
    from tandem_operator.plan.predict import Forecast, Load
    from tandem_operator.plan.study import Study

SHOWN = 4  # alternatives kept with a decision


def move_words(before: Target, after: Target) -> str:
    """`prefill 1→2, decode 2→1` and the pools that change."""
    parts = [
        f"{name} {a}→{b}"
        for name, a, b in (("prefill", before.prefill, after.prefill), ("decode", before.decode, after.decode))
        if a != b
    ]
    pools = [
        f"pool {name} {before.pools.get(name, 0)}→{count}"
        for name, count in after.pools.items()
        if before.pools.get(name, 0) != count
    ]
    return ", ".join([*parts, *pools]) or "no change"


def ms_words(latency_ms: float | None) -> str:
    """`1,020 ms`, `unbounded`, or `none` where no request would see it."""
    if latency_ms is None:
        return "unbounded"
    return f"{latency_ms:,.0f} ms" if latency_ms else "none"


def forecast_words(forecast: Forecast, slo: Slo) -> str:
    """`TTFT p90 1,020 ms, TPOT p90 84 ms, attainment 97 %`."""
    if forecast.is_idle:
        return "no load"
    ttft, tpot = ms_words(forecast.prefill.latency_ms), ms_words(forecast.decode.latency_ms)
    share = f"attainment {100 * forecast.attainment:.0f} %"
    return f"TTFT p{slo.percentile} {ttft}, TPOT p{slo.percentile} {tpot}, {share}"


def bottleneck_words(forecast: Forecast, load: Load) -> str:
    """Which side is short, or nearer to it, and the arithmetic of it."""
    prefill, decode = forecast.prefill, forecast.decode
    if is_decode_short(forecast):
        demand = f"{load.arrival_rate:.2f} req/s × {load.output_tokens:.0f} tokens"
        if decode.batch is None:
            return f"decode is {busy_words(decode.utilisation)} at {demand}"
        share = f"{100 * decode.utilisation:.0f} % of its throughput"
        return f"decode runs {decode.batch:.1f} requests a worker, {share}, at {demand}"
    demand = f"{load.arrival_rate:.2f} req/s × {load.computed_tokens:.0f} tokens"
    return f"prefill is {busy_words(prefill.utilisation)} at {demand}"


def is_decode_short(forecast: Forecast) -> bool:
    """Is decode the side that misses its target more, or else the fuller one?"""
    prefill, decode = forecast.prefill, forecast.decode
    if decode.utilisation >= 1 or abs(decode.within - prefill.within) < 0.01:
        return decode.utilisation > prefill.utilisation
    return decode.within < prefill.within


def busy_words(utilisation: float) -> str:
    """`131 % busy`."""
    return "without workers" if utilisation == float("inf") else f"{100 * utilisation:.0f} % busy"


def why_words(study: Study) -> str:
    """What was observed, for how long, and which side is short."""
    seen = study.breach
    observed = "targets are met" if seen is None else f"{seen.verdict.message} for {seen.windows} windows"
    when = f"in {study.ahead_s:.0f} s, by forecast, " if study.ahead_s else ""
    return f"{observed}; {when}{bottleneck_words(study.current.forecast, study.load)}"


def move_message(study: Study, option: Option) -> str:
    """The sentence of a flip or a scaling."""
    predicted = forecast_words(option.forecast, study.seen.limits.slo)
    drain = option.forecast.drain_s
    backlog = ""
    if study.load.waiting_tokens > 0 and drain is not None and drain >= 1:
        backlog = f"; backlog of {study.load.waiting_tokens:,.0f} tokens drains in {drain:.0f} s"
    return f"{move_words(study.current.target, option.target)}: {why_words(study)}; predicted {predicted}{backlog}"


def closest_words(study: Study, option: Option) -> str:
    """The SLO that the best option could keep, when none can keep the one that is asked for."""
    wanted, forecast = study.seen.limits.slo, option.forecast
    if forecast.prefill.latency_ms is None or forecast.decode.latency_ms is None:
        return "no allowed plan carries this load"
    ttft = max(wanted.ttft_ms, round(forecast.prefill.latency_ms * 1.1))
    tpot = max(wanted.tpot_ms, round(forecast.decode.latency_ms * 1.1))
    return f"closest feasible SLO: TTFT {ttft:,} ms, TPOT {tpot:,} ms at p{wanted.percentile}"


def alternatives(study: Study, chosen: Option) -> tuple[Alternative, ...]:
    """The chosen option, staying, and the best of the plans one flip or one replica away, each with why not."""
    staying = [] if study.current.target == chosen.target else [study.current]
    shown = [chosen, *staying]
    shown += study.neighbours(chosen, SHOWN - len(shown))
    return tuple(Alternative(o.target, o.forecast.prediction(), o.gpus, rejection(study, chosen, o)) for o in shown)


def rejection(study: Study, chosen: Option, option: Option) -> str:
    """Why `option` was not taken; '' for the one that was."""
    if option is chosen:
        return ""
    if not study.is_feasible(option) and option.sure < chosen.sure:
        return f"attainment {100 * option.sure:.0f} % (one sigma low) against {100 * chosen.sure:.0f} %"
    if option.cost < chosen.cost:
        return f"cheaper, but {unproven(study, chosen, option)}"
    if option.cost > chosen.cost:
        return f"takes {option.gpus} GPUs, the choice takes {chosen.gpus}"
    if option.change > chosen.change and option.forecast.attainment <= chosen.forecast.attainment:
        return "moves more for no need"
    return "not clearly better than the choice"


def unproven(study: Study, chosen: Option, option: Option) -> str:
    """What keeps the planner from a cheaper plan that is no less sure by now: a step, a breach, or no proof."""
    limits, now = study.seen.limits, study.current
    low, high = study.within_step
    for pool, least, most in zip(limits.pools, low, high, strict=True):
        before, after = now.target.pools.get(pool.name, 0), option.target.pools.get(pool.name, 0)
        if not least <= after <= most:
            bound = f"removes at most {before - least}" if after < least else f"adds at most {most - before}"
            return f"pool {pool.name} goes {before}→{after}, and one step {bound}"
        if study.breach is not None and after < before <= chosen.target.pools.get(pool.name, 0):
            return f"pool {pool.name} gives none away while targets are missed"
    if option.forecast.overload > chosen.forecast.overload and not study.is_feasible(option):
        mine, other = (busy_words(o.forecast.overload) for o in (option, chosen))
        return f"its fuller side is {mine}, the choice's {other}"
    return f"not proven under the loads of the last {limits.steadiness.down_window_s} s and those that may come"
