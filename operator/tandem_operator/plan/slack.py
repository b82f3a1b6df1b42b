"""Scale-down: only after confirmed slack, and only to a plan that would carry the busiest window with headroom."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from tandem_operator.plan.desk import Desk
from tandem_operator.plan.facts import Action, Answer, Decision
from tandem_operator.plan.judge import contiguous, judge_window
from tandem_operator.plan.search import Bar, Region, Search
from tandem_operator.plan.study import load_of, reach, with_headroom
from tandem_operator.plan.words import alternatives, forecast_words, move_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tandem_operator.plan.desk import Option
    from tandem_operator.plan.facts import Slo, Window
    from tandem_operator.plan.predict import Load
    from tandem_operator.plan.study import Study


def release_slack(case: Study) -> Decision | None:
    """The cheapest smaller plan that keeps both targets if 0.8 of what it can take is the down window's heaviest load.

    The headroom is in the load: a share of the targets would ask a smaller plan to be faster than the device is.
    """
    limits, shape, now = case.seen.limits, case.seen.model, case.current
    recent = windows_of(case)
    if recent is None or shape is None or not all(is_calm(recent, i, limits.slo) for i in range(len(recent))):
        return None
    load = with_headroom(heaviest(recent, case))
    desk = Desk(limits, shape, heavier(load, case.provided.load) if case.provided else load, case.model, limits.slo)
    search = Search(desk, now.target, limits.steadiness.up_pods)
    low, high = reach(limits, search.now)
    smaller = Region(low, high, most_gpus=now.gpus - 1, below_cost=now.cost)
    found = search.cheapest(smaller, Bar(sure=case.wanted))
    if found is None:
        return None
    return shrink(case, desk.weigh(search.target(found), now.target), len(recent))


def windows_of(case: Study) -> Sequence[Window] | None:
    """The windows of the last down_window_s; None while the history does not reach that far without a gap."""
    seconds = case.seen.limits.steadiness.down_window_s
    recent = contiguous(case.seen.history, case.seen.limits.interval_s)
    since = case.now - timedelta(seconds=seconds)
    if recent[0].at > since + timedelta(seconds=case.seen.limits.interval_s):
        return None
    return [w for w in recent if w.at >= since]


def is_calm(windows: Sequence[Window], index: int, slo: Slo) -> bool:
    """Within both targets, or confirmed idle: an unknown window is never slack."""
    if windows[index].arrival_rate is None:
        return False
    verdict = judge_window(windows[: index + 1], slo)
    return verdict.answer is Answer.YES or verdict.reason == "NoTraffic"


def heaviest(windows: Sequence[Window], case: Study) -> Load:
    """Each figure at its highest over the windows and the forecast: the smaller plan must carry all of it at once."""
    share = case.load.computed_tokens / case.load.prompt_tokens if case.load.prompt_tokens else 1.0
    loads = [load_of(windows[: i + 1], share) for i in range(len(windows))]
    loads += [case.later.load] if case.later else []
    return replace(
        case.load,
        arrival_rate=max(x.arrival_rate for x in loads),
        prompt_tokens=max(x.prompt_tokens for x in loads),
        computed_tokens=max(x.computed_tokens for x in loads),
        output_tokens=max(x.output_tokens for x in loads),
    )


def heavier(a: Load, b: Load) -> Load:
    """Both roles' work at the higher of the two; the rate as well, and lengths to match."""
    rate = max(a.arrival_rate, b.arrival_rate, 1e-9)
    return replace(
        a,
        arrival_rate=rate,
        computed_tokens=max(x.arrival_rate * x.computed_tokens for x in (a, b)) / rate,
        output_tokens=max(x.arrival_rate * x.output_tokens for x in (a, b)) / rate,
    )


def shrink(case: Study, option: Option, windows: int) -> Decision:
    """The decision to give replicas back."""
    slo = case.seen.limits.slo
    seconds = case.seen.limits.steadiness.down_window_s
    message = (
        f"{move_words(case.current.target, option.target)}: both targets were met in all {windows} windows of "
        f"{seconds} s; with the heaviest of their loads as 80 % predicted {forecast_words(option.forecast, slo)}; "
        f"GPUs given back: {case.current.gpus - option.gpus}"
    )
    chosen = case.desk.weigh(option.target, case.current.target)
    return Decision(
        Action.SCALE, "SlackConfirmed", message, option.target, option.forecast.prediction(), alternatives(case, chosen)
    )
