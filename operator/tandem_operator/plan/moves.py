"""Moves from seconds to minutes, each from the study of one look at the facts; and why nothing moves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tandem_operator.plan.ahead import scale_ahead
from tandem_operator.plan.facts import Action, Answer, Decision
from tandem_operator.plan.judge import judge_window, may_grow
from tandem_operator.plan.slack import release_slack
from tandem_operator.plan.study import CLEARLY, LESS_OVERLOAD, OVERLOADED
from tandem_operator.plan.words import (
    alternatives,
    bottleneck_words,
    closest_words,
    forecast_words,
    move_message,
    why_words,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tandem_operator.plan.desk import Option
    from tandem_operator.plan.study import Study

    Move = Callable[[Study], Decision | None]

BREACH_WINDOWS = 2  # one missed window is chance


def flip_role(case: Study) -> Decision | None:
    """Seconds: the least flips that meet the SLO with the workers there are."""
    if not is_breached(case) or case.better_flip is None:
        return None
    return move(case, Action.FLIP, "TargetsMissed", case.better_flip)


def scale_replicas(case: Study) -> Decision | None:
    """Minutes: the cheapest plan that meets the SLO under the load that new replicas will meet.

    Least change first among equals; in a breach no pool gives replicas away if growing alone is enough.
    """
    view = case.later or case
    if not is_breached(case, case.seen.limits.steadiness.up_window_s) or view.better_plan is None:
        return None
    return move(view, action_of(view, view.better_plan), "TargetsMissed", view.better_plan)


def least_bad(case: Study) -> Decision | None:
    """No plan within one step meets the SLO: the one that comes closest, if it is clearly better."""
    if not is_breached(case) or case.is_feasible(case.current) or case.better_plan is not None:
        return None
    patient = is_breached(case, case.seen.limits.steadiness.up_window_s)
    best = case.closest(may_scale=patient)
    if not is_clearly_better(case, best):
        return None
    action = action_of(case, best)
    if best.forecast.attainment >= case.wanted:  # within reach, if not yet certain
        return move(case, action, "TargetsMissed", best)
    if may_grow(case.seen.limits, best.target):
        return move(case, action, "BoundedStep", best)
    chosen = move(case, action, "Infeasible", best)
    return replace(chosen, message=f"{chosen.message}; {closest_words(case, best)}")


def action_of(case: Study, option: Option) -> Action:
    """Do roles alone change?"""
    return Action.FLIP if option.target.pools == case.current.target.pools else Action.SCALE


def is_breached(case: Study, seconds: float = 0.0) -> bool:
    """Were the targets missed in enough consecutive windows, for at least this long?"""
    return case.breach is not None and case.breach.windows >= BREACH_WINDOWS and case.breach.seconds >= seconds


def is_clearly_better(case: Study, option: Option) -> bool:
    """Hysteresis: more attainment by a margin, surely; or clearly less overload where staying is sure to fail.

    The second needs no margin of attainment: beyond capacity attainment is chance, and a rule that looked at it would
    change its mind with every window.
    """
    now = case.current
    gain, sure_gain = option.forecast.attainment - now.forecast.attainment, option.sure - now.sure
    if gain >= CLEARLY and sure_gain >= CLEARLY:
        return True
    is_lost = now.forecast.overload > 1 or max(option.forecast.attainment, now.forecast.attainment) < OVERLOADED
    lighter = option.forecast.overload <= LESS_OVERLOAD * now.forecast.overload
    return is_lost and lighter and gain >= 0 and sure_gain >= 0


def move(case: Study, action: Action, reason: str, option: Option) -> Decision:
    """The decision to go to `option`, with its words."""
    return Decision(
        action,
        reason,
        move_message(case, option),
        option.target,
        option.forecast.prediction(),
        alternatives(case, option),
    )


def stay(case: Study) -> Decision:
    """Nothing moved: say why the present plan is kept."""
    now, slo = case.current, case.seen.limits.slo
    verdict = judge_window(case.seen.history, slo)
    predicted = f"predicted {forecast_words(now.forecast, slo)}"
    if case.breach is None:
        reason = "WithinTargets" if verdict.answer is Answer.YES else verdict.reason
        message = f"{verdict.message}; {bottleneck_words(now.forecast, case.load)}"
    elif passes(case) and case.later is not None:
        reason = "Recovering"
        told = f"in {case.later.ahead_s:.0f} s {case.later.load.arrival_rate:.2f} req/s by forecast"
        message = f"{why_words(case)}; {told}, predicted {forecast_words(case.later.current.forecast, slo)}"
    elif not is_breached(case) or case.better_plan is not None:
        reason = "BreachNotConfirmed"
        message = f"{why_words(case)}; {predicted}"
    elif case.is_feasible(now) or now.forecast.attainment >= case.wanted:
        reason = "Recovering"
        message = f"{why_words(case)}; {predicted}; {drain_words(case)}"
    else:
        best = case.closest(may_scale=True)
        reason = "Infeasible"
        message = f"{why_words(case)}; no allowed plan is clearly better; {closest_words(case, best)}"
    return Decision(Action.HOLD, reason, message, now.target, now.forecast.prediction(), alternatives(case, now))


def passes(case: Study) -> bool:
    """Is the breach old enough for replicas, and will the present plan carry the load by the time that they serve?"""
    patience = case.seen.limits.steadiness.up_window_s
    return case.later is not None and is_breached(case, patience) and case.is_feasible(case.later.current)


def drain_words(case: Study) -> str:
    """How long the backlog takes, if there is one."""
    drain = case.current.forecast.drain_s
    if drain is None:
        return "the backlog does not drain"
    return f"backlog of {case.load.waiting_tokens:,.0f} tokens drains in {drain:.0f} s"


MOVES: tuple[Move, ...] = (
    flip_role,  # seconds
    scale_replicas,  # minutes
    least_bad,  # no plan meets the SLO: come closest
    scale_ahead,  # a forecast that the present plan does not carry
    release_slack,  # confirmed over down_window_s
)
