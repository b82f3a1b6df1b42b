"""The policy: guards that hold, then moves from the cheapest to the dearest; the first rule that speaks decides."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from tandem_operator.plan.candidates import clamp, has_both, home_roles, is_legal
from tandem_operator.plan.facts import Action, Answer, Decision, RebalanceMode, Role, Target, Verdict
from tandem_operator.plan.judge import contiguous, judge_metrics, judge_window, may_grow
from tandem_operator.plan.slack import release_slack
from tandem_operator.plan.study import Option, Study, study
from tandem_operator.plan.words import (
    alternatives,
    bottleneck_words,
    closest_words,
    forecast_words,
    move_message,
    move_words,
    why_words,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from tandem_operator.plan.facts import Observed

    Guard = Callable[[Observed, datetime], Decision | None]
    Move = Callable[[Study], Decision | None]

BREACH_WINDOWS = 2  # one missed window is chance
CLEARLY = 0.05  # a move must promise this much more attainment than staying
OVERLOADED = 0.05  # both plans below this attainment are compared by overload instead
LESS_OVERLOAD = 0.9  # ... and the better one must have at most this share of the other's


def decide(seen: Observed, now: datetime) -> Decision:
    """What to do for one resource now. Deterministic: the same facts give the same decision."""
    for bound in BOUNDS:
        if (decision := bound(seen, now)) is not None:
            return decision
    return in_mode(seen, now)


def in_mode(seen: Observed, now: datetime) -> Decision:
    """The free decision, as far as `rebalance.mode` lets it be carried out."""
    wanted = choose(seen, now)
    target = target_of(seen)
    if seen.limits.mode is RebalanceMode.OFF:
        return replace(
            wanted, action=Action.HOLD, reason="RebalanceOff", target=target, message=f"off; {would(wanted)}"
        )
    if seen.limits.mode is RebalanceMode.RECOMMEND and wanted.action is not Action.HOLD:
        return replace(wanted, action=Action.RECOMMEND, target=target, message=f"recommended: {wanted.message}")
    return wanted


def would(wanted: Decision) -> str:
    """What Auto would do, in words."""
    if wanted.action is Action.HOLD:
        return f"Auto would hold ({wanted.reason}): {wanted.message}"
    return f"Auto would move {wanted.message}"


def choose(seen: Observed, now: datetime) -> Decision:
    """The decision of mode Auto: guards first, then the moves on one study of the facts."""
    for guard in GUARDS:
        if (decision := guard(seen, now)) is not None:
            return decision
    case = study(seen, now)
    if isinstance(case, Verdict):
        return hold(seen, case.reason, case.message)
    for move in MOVES:
        if (decision := move(case)) is not None:
            return decision
    return stay(case)


# --- bounds: what the resource says, whatever the metrics are ---


def initialize(seen: Observed, now: datetime) -> Decision | None:  # noqa: ARG001
    """No target and no children: `initial`, within every bound."""
    if seen.target is not None or any(p.desired is not None for p in seen.pools):
        return None
    return first_target(seen, Action.INITIALIZE, "InitialTarget", {}, None)


def adopt(seen: Observed, now: datetime) -> Decision | None:  # noqa: ARG001
    """The status was lost: what the children do is the intent, clamped."""
    if seen.target is not None:
        return None
    counts = {p.name: p.desired for p in seen.pools if p.desired is not None}
    return first_target(seen, Action.ADOPT, "StatusLost", counts, prefill_now(seen, counts))


def prefill_now(seen: Observed, counts: dict[str, int]) -> int:
    """Workers that prefill; a pod that is missing from its pool counts by the pool's role, in which it will start."""
    living = [w for w in seen.workers if not w.deleting]
    found = sum(w.role is Role.PREFILL for w in living)
    for pool in seen.limits.pools:
        if pool.role is Role.PREFILL:
            found += max(counts.get(pool.name, pool.initial) - sum(w.pool == pool.name for w in living), 0)
    return found


def obey_bounds(seen: Observed, now: datetime) -> Decision | None:  # noqa: ARG001
    """The resource was edited and the target lies outside: the nearest legal one, whatever the mode and metrics."""
    target = target_of(seen)
    if is_legal(seen.limits, target):
        return None
    # Without flips, roles follow the pools; counts that were right stay.
    return first_target(seen, Action.SCALE, "BoundsChanged", dict(target.pools), target.prefill)


def first_target(seen: Observed, action: Action, reason: str, counts: dict[str, int], prefill: int | None) -> Decision:
    """A target from counts rather than from a forecast; a hold where the bounds contradict each other."""
    target = clamp(seen.limits, counts, prefill)
    if target is None:
        kept = seen.target or minimal(seen)
        message = "pools' minima, roles' minima and the GPU budget contradict each other: no legal target"
        return Decision(Action.HOLD, "ImpossibleBounds", message, kept)
    before = seen.target
    words = move_words(before, target) if before else f"prefill {target.prefill}, decode {target.decode}"
    source = {"InitialTarget": "the pools' initial replicas", "StatusLost": "adopted from the running pools"}
    return Decision(
        action, reason, f"{words}: {source.get(reason, 'the resource allows no more of the old target')}", target
    )


def minimal(seen: Observed) -> Target:
    """Every pool at its minimum: the least that a person asked for."""
    counts = {p.name: p.minimum for p in seen.limits.pools}
    return Target(counts, *home_roles(seen.limits, counts))


# --- guards: reasons to hold ---


def hold_when_colocated(seen: Observed, now: datetime) -> Decision | None:  # noqa: ARG001
    """Workers of a Both pool do both roles: there is no ratio to choose."""
    if not has_both(seen.limits):
        return None
    return hold(seen, "ColocatedPools", "a pool has role Both: its workers do both roles, and no ratio is chosen")


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


def finish_open_move(seen: Observed, now: datetime) -> Decision | None:  # noqa: ARG001
    """One move at a time: the current target's workers are ready in their roles before the next is chosen."""
    target = target_of(seen)
    serving = [w for w in seen.workers if w.ready and not w.deleting]
    prefill, decode = (sum(w.role is role for w in serving) for role in (Role.PREFILL, Role.DECODE))
    if (prefill, decode) == (target.prefill, target.decode):
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
        if window.at > since and not matches(window.prefill_workers, window.decode_workers, target):
            words = f"{window.prefill_workers}:{window.decode_workers} workers served within the newest window"
            return hold(seen, "Cooldown", f"{words}; the target is {target.prefill}:{target.decode}")
    return None


def matches(prefill: int | None, decode: int | None, target: Target) -> bool:
    """Did these workers serve as the target says? An unknown count does not contradict it."""
    return prefill in (None, target.prefill) and decode in (None, target.decode)


# --- moves: from seconds to minutes ---


def flip_role(case: Study) -> Decision | None:
    """Seconds: the least flips that meet the SLO with the workers there are."""
    if not is_breached(case):
        return None
    flips = [o for o in better_options(case) if o.target.pools == case.current.target.pools and case.is_feasible(o)]
    if not flips:
        return None
    return move(case, Action.FLIP, "TargetsMissed", min(flips, key=lambda o: (o.change, -o.sure)))


def scale_replicas(case: Study) -> Decision | None:
    """Minutes: the cheapest plan that meets the SLO, least change first among equals.

    In a breach no pool gives replicas away if growing alone is enough.
    """
    if not is_breached(case, case.seen.limits.steadiness.up_window_s):
        return None
    plans = [o for o in better_options(case) if case.is_feasible(o)]
    if not plans:
        return None
    growing = [o for o in plans if all(o.target.pools[name] >= n for name, n in case.current.target.pools.items())]
    best = min(growing or plans, key=lambda o: (o.cost, o.change, -o.sure))
    return move(case, Action.SCALE, "TargetsMissed", best)


def least_bad(case: Study) -> Decision | None:
    """No plan within one step meets the SLO: the one that comes closest, if it is clearly better."""
    if not is_breached(case) or case.is_feasible(case.current):
        return None
    patient = is_breached(case, case.seen.limits.steadiness.up_window_s)
    plans = [o for o in better_options(case) if patient or o.target.pools == case.current.target.pools]
    if not plans or any(case.is_feasible(o) for o in better_options(case)):
        return None
    best = min(plans, key=lambda o: (-round(o.sure, 2), round(o.forecast.overload, 2), o.cost, o.change))
    flips_only = best.target.pools == case.current.target.pools
    action = Action.FLIP if flips_only else Action.SCALE
    if best.forecast.attainment >= case.wanted:  # within reach, if not yet certain
        return move(case, action, "TargetsMissed", best)
    if may_grow(case.seen.limits, best.target):
        return move(case, action, "BoundedStep", best)
    chosen = move(case, action, "Infeasible", best)
    return replace(chosen, message=f"{chosen.message}; {closest_words(case, best)}")


def is_breached(case: Study, seconds: float = 0.0) -> bool:
    """Were the targets missed in enough consecutive windows, for at least this long?"""
    return case.breach is not None and case.breach.windows >= BREACH_WINDOWS and case.breach.seconds >= seconds


def better_options(case: Study) -> list[Option]:
    """Options clearly better than staying; in a breach nothing gets cheaper, let alone smaller."""
    now = case.current
    return [o for o in case.options if o is not now and o.gpus >= now.gpus and is_clearly_better(case, o)]


def is_clearly_better(case: Study, option: Option) -> bool:
    """Hysteresis: more attainment by a margin; where neither serves the load, clearly less overload.

    A present plan that is overloaded is sure to fail: for another it is then enough to be no surer to fail.
    """
    now = case.current
    lighter = option.forecast.overload <= LESS_OVERLOAD * now.forecast.overload
    if max(option.forecast.attainment, now.forecast.attainment) < OVERLOADED:
        return lighter
    if option.forecast.attainment - now.forecast.attainment < CLEARLY:
        return False
    return option.sure - now.sure >= CLEARLY or (now.forecast.overload > 1 and lighter and option.sure >= now.sure)


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


# --- holds ---


def stay(case: Study) -> Decision:
    """Nothing moved: say why the present plan is kept."""
    now, slo = case.current, case.seen.limits.slo
    verdict = judge_window(case.seen.history, slo)
    predicted = f"predicted {forecast_words(now.forecast, slo)}"
    if case.breach is None:
        reason = "WithinTargets" if verdict.answer is Answer.YES else verdict.reason
        message = f"{verdict.message}; {bottleneck_words(now.forecast, case.load)}"
    elif not is_breached(case) or any(case.is_feasible(o) for o in better_options(case)):
        reason = "BreachNotConfirmed"
        message = f"{why_words(case)}; {predicted}"
    elif case.is_feasible(now) or now.forecast.attainment >= case.wanted:
        reason = "Recovering"
        message = f"{why_words(case)}; {predicted}; {drain_words(case)}"
    else:
        best = max(case.options, key=lambda o: (round(o.sure, 2), -o.forecast.overload))
        reason = "Infeasible"
        message = f"{why_words(case)}; no allowed plan is clearly better; {closest_words(case, best)}"
    return Decision(Action.HOLD, reason, message, now.target, now.forecast.prediction(), alternatives(case, now))


def drain_words(case: Study) -> str:
    """How long the backlog takes, if there is one."""
    drain = case.current.forecast.drain_s
    if drain is None:
        return "the backlog does not drain"
    return f"backlog of {case.load.waiting_tokens:,.0f} tokens drains in {drain:.0f} s"


def hold(seen: Observed, reason: str, message: str) -> Decision:
    """Keep the target, for a reason that needs no forecast."""
    return Decision(Action.HOLD, reason, message, target_of(seen))


def target_of(seen: Observed) -> Target:
    """The present target; the bounds' rules run first, so that there is one."""
    if seen.target is None:
        raise ValueError("no target: initialize or adopt must decide first")
    return seen.target


BOUNDS: tuple[Guard, ...] = (
    initialize,  # first target, from `initial`
    adopt,  # status lost: the children tell
    obey_bounds,  # the resource was edited
)
GUARDS: tuple[Guard, ...] = (
    hold_when_colocated,  # no ratio to choose
    hold_when_blind,  # unknown metrics never shrink a pool
    hold_after_gap,  # the first rates after an outage are of partial data
    finish_open_move,  # one move at a time
    hold_in_cooldown,  # the metrics must be of this plan
)
MOVES: tuple[Move, ...] = (
    flip_role,  # seconds
    scale_replicas,  # minutes
    least_bad,  # no plan meets the SLO: come closest
    release_slack,  # confirmed over down_window_s
)
