"""Scale-down: only after confirmed slack, and only to a plan that would have carried what came, and what may come."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tandem_operator.plan.desk import Desk
from tandem_operator.plan.facts import Action, Answer, Decision
from tandem_operator.plan.judge import contiguous, judge_window
from tandem_operator.plan.scenarios import seen
from tandem_operator.plan.search import Bar, Region, Search
from tandem_operator.plan.study import reach
from tandem_operator.plan.words import alternatives, forecast_words, move_words

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from tandem_operator.plan.desk import Option
    from tandem_operator.plan.facts import Observed, Slo, Window
    from tandem_operator.plan.study import Study


def release_slack(case: Study) -> Decision | None:
    """The cheapest smaller plan that keeps both targets, surely, under what came and under what may come.

    What came: the down window's loads, and as long as there are any those of the whole history, which may come again.
    What may come: the forecast, with each error that it has made. A role that keeps its workers needs no proof.
    """
    limits, shape, now = case.seen.limits, case.seen.model, case.current
    recent = windows_of(case.seen, case.now)
    if recent is None or shape is None or not is_calm(recent, limits.slo):
        return None
    is_used = any(w.arrival_rate for w in recent)
    came = case.came
    demands = (seen(came[-len(recent) :], case.load), seen(came, case.load), case.foreseen) if is_used else ()
    desk = Desk(limits, shape, case.load, case.model, limits.slo, demands, kept=now.target)
    search = Search(desk, now.target, limits.steadiness.up_pods)
    low, high = reach(limits, search.now)
    smaller = Region(low, high, most_gpus=now.gpus - 1, below_cost=now.cost)
    found = search.cheapest(smaller, Bar(sure=case.wanted))
    if found is None:
        return None
    return shrink(case, desk.weigh(search.target(found), now.target), len(recent))


def windows_of(observed: Observed, now: datetime) -> Sequence[Window] | None:
    """The windows of the last down_window_s; None while the history does not reach that far without a gap."""
    interval_s = observed.limits.interval_s
    recent = contiguous(observed.history, interval_s)
    since = now - timedelta(seconds=observed.limits.steadiness.down_window_s)
    if recent[0].at > since + timedelta(seconds=interval_s):
        return None
    return [w for w in recent if w.at >= since]


def is_calm(windows: Sequence[Window], slo: Slo) -> bool:
    """Were both targets met, by as many requests as the SLO asks for, and is nothing missed or unknown now?

    One window's verdict is chance: at a burst's onset arrivals outrun completions, and all are in time for all that.
    """
    if any(w.arrival_rate is None for w in windows) or not is_met(windows, slo):
        return False
    weighed = [(w.request_rate, w.attainment) for w in windows if w.request_rate and w.attainment is not None]
    met, ended = sum(rate * share for rate, share in weighed), sum(rate for rate, _ in weighed)
    blind = [i for i, w in enumerate(windows) if w.attainment is None or w.request_rate is None]
    return met * 100 >= slo.percentile * ended and all(is_met(windows[: i + 1], slo) for i in blind)


def is_met(windows: Sequence[Window], slo: Slo) -> bool:
    """Is the newest of them within both targets, or confirmed idle?"""
    verdict = judge_window(windows, slo)
    return verdict.answer is Answer.YES or verdict.reason == "NoTraffic"


def shrink(case: Study, option: Option, windows: int) -> Decision:
    """The decision to give replicas back."""
    slo = case.seen.limits.slo
    seconds = case.seen.limits.steadiness.down_window_s
    message = (
        f"{move_words(case.current.target, option.target)}: both targets were met in all {windows} windows of "
        f"{seconds} s; with their loads, and those that are forecast, predicted "
        f"{forecast_words(option.forecast, slo)}; GPUs given back: {case.current.gpus - option.gpus}"
    )
    chosen = case.desk.weigh(option.target, case.current.target)
    return Decision(
        Action.SCALE, "SlackConfirmed", message, option.target, option.forecast.prediction(), alternatives(case, chosen)
    )
