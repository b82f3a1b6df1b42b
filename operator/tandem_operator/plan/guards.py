"""Reasons to hold, whatever the load is."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tandem_operator.plan.bounds import target_of
from tandem_operator.plan.candidates import has_both
from tandem_operator.plan.facts import Action, Answer, Decision
from tandem_operator.plan.judge import contiguous, judge_metrics
from tandem_operator.plan.stuck import is_stuck, serving_roles
from tandem_operator.plan.study import served_as

if TYPE_CHECKING:
    from datetime import datetime

    from tandem_operator.plan.bounds import Guard
    from tandem_operator.plan.facts import Observed


def hold_when_blind(seen: Observed, now: datetime) -> Decision | None:
    """Unknown metrics never move, and never shrink, a pool."""
    verdict = judge_metrics(seen, now)
    return None if verdict.answer is Answer.YES else hold(seen, verdict.reason, verdict.message)


def hold_after_gap(seen: Observed, now: datetime) -> Decision | None:  # noqa: ARG001
    """After a start or an outage, one full rate window must pass: the first rates are of partial data."""
    recent = contiguous(seen.history, seen.limits.interval_s)
    span = (recent[-1].at - recent[0].at).total_seconds() + seen.limits.interval_s
    if span >= recent[-1].seconds:
        return None
    words = f"metrics without a gap cover {span:.0f} s; a window takes {recent[-1].seconds} s"
    return hold(seen, "WindowFilling", words)


def finish_open_move(seen: Observed, now: datetime) -> Decision | None:
    """One move at a time: the target's workers serve before the next is chosen, or the deadline passes."""
    target = target_of(seen)
    prefill, decode = serving_roles(seen)
    done = (prefill, decode) == (target.prefill, target.decode)
    if done or has_both(seen.limits) or is_stuck(seen, now):  # a number without roles is judged apart (shared)
        return None
    words = f"serving: prefill {prefill} of {target.prefill}, decode {decode} of {target.decode}"
    return hold(seen, "MoveOpen", words)


def hold_in_cooldown(seen: Observed, now: datetime) -> Decision | None:
    """A window that began before the last move tells of another plan: wait until one is all of this plan."""
    target, newest = target_of(seen), seen.history[-1]
    seconds = max(newest.seconds, 2 * seen.limits.interval_s)
    if seen.decided_at is not None and (age := (now - seen.decided_at).total_seconds()) < seconds:
        return hold(seen, "Cooldown", f"the target changed {age:.0f} s ago; a window takes {seconds} s to fill")
    since = newest.at - timedelta(seconds=newest.seconds)
    for window in seen.history:
        if window.at > since and not served_as(window, target):
            words = f"{window.prefill_workers}:{window.decode_workers} workers served within the newest window"
            return hold(seen, "Cooldown", f"{words}; the target is {target.prefill}:{target.decode}")
    return None


def hold(seen: Observed, reason: str, message: str) -> Decision:
    """Keep the target, for a reason that needs no forecast."""
    return Decision(Action.HOLD, reason, message, target_of(seen))


GUARDS: tuple[Guard, ...] = (
    hold_when_blind,  # unknown metrics never shrink a pool
    hold_after_gap,  # the first rates after an outage are of partial data
    finish_open_move,  # one move at a time, but not for ever
)
