"""Scale to zero: whether a resource sleeps. Pure; what is not known changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from tandem_operator.plan.facts import Answer
from tandem_operator.plan.judge import contiguous, is_idle, judge_metrics

if TYPE_CHECKING:
    from datetime import datetime

    from tandem_operator.plan.facts import Observed


@dataclass(frozen=True, slots=True)
class SleepCase:
    """What the choice may depend on."""

    observed: Observed
    after_s: int
    asleep: bool
    since: datetime | None  # when that last changed; None: never
    held: float | None  # requests that the routers hold now; None: not known
    running: float | None  # requests on the workers now; None: not known


@dataclass(frozen=True, slots=True)
class SleepChoice:
    """A change, in words; `asleep`: what is to be."""

    asleep: bool
    message: str


def choose_sleep(case: SleepCase, now: datetime) -> SleepChoice | None:
    """The change to make now; None where things stay as they are."""
    metrics = judge_metrics(case.observed, now)
    if metrics.answer is not Answer.YES:
        return None
    return wake(case) if case.asleep else fall_asleep(case, now)


def wake(case: SleepCase) -> SleepChoice | None:
    """A request is held by a router, or one came and has left again within the window."""
    arrived = case.observed.history[-1].arrival_rate
    if case.held:
        return SleepChoice(asleep=False, message=f"{case.held:.0f} requests wait in the routers: the workers start")
    # A rate's window reaches back to before the workers went; only after it an arrival is news.
    newest = case.observed.history[-1]
    if arrived and case.since and newest.at - timedelta(seconds=newest.seconds) > case.since:
        return SleepChoice(asleep=False, message=f"{arrived:.3f} requests/s arrived: the workers start")
    return None


def fall_asleep(case: SleepCase, now: datetime) -> SleepChoice | None:
    """Nothing arrived, waited or ran for all of the time that is asked for, seen without a gap."""
    if case.held or case.running is None or case.running > 0 or case.observed.target is None:
        return None
    recent = contiguous(case.observed.history, case.observed.limits.interval_s)
    since = now - timedelta(seconds=case.after_s)
    if case.since is not None and case.since > since:
        return None
    idle_since = now
    for window in reversed(recent):
        if not is_idle(window):
            break
        idle_since = window.at - timedelta(seconds=window.seconds)
    if idle_since > since:
        return None
    return SleepChoice(asleep=True, message=f"no request for {case.after_s} s: no workers until one comes")
