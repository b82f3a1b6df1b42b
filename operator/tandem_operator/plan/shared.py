"""How many colocated workers there are to be. Pure.

A worker of role Both does both jobs: there is no ratio, only a number. It is chosen by the advisor's own forecast of
chunked prefill (`colocated`), every cost times what makes it agree with the measured TPOT. More workers come in a
confirmed breach alone, at least one; fewer after a whole calm scale-down window, and only where the forecast is within
both targets even one standard deviation dearer. So what is measured decides the direction, the model how far.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from statistics import median
from typing import TYPE_CHECKING

from tandem_operator.plan.advise import factor_of
from tandem_operator.plan.bounds import target_of
from tandem_operator.plan.candidates import clamp, has_both
from tandem_operator.plan.facts import Action, Decision
from tandem_operator.plan.guards import hold
from tandem_operator.plan.judge import breach, judge_window
from tandem_operator.plan.modes import load_words, question_of, traffic_of
from tandem_operator.plan.moves import BREACH_WINDOWS
from tandem_operator.plan.sizing import Group, Sizer, best_shared
from tandem_operator.plan.slack import is_calm, windows_of
from tandem_operator.plan.stuck import deadline_s, serving

if TYPE_CHECKING:
    from datetime import datetime

    from tandem_operator.plan.facts import ModelShape, Observed, Prediction, Target
    from tandem_operator.plan.judge import Breach
    from tandem_operator.plan.sizing import Question
    from tandem_operator.plan.traffic import Traffic

SLOWEST, FASTEST = 16.0, 1 / 16  # costs over the data sheet's, beyond which a measurement is not believed
HALVINGS = 12  # of that span: within half a per cent


@dataclass(frozen=True, slots=True)
class Case:
    """One look at colocated workers: all of one kind, `size` of them."""

    seen: Observed
    now: datetime
    shape: ModelShape
    size: int

    def step(self, upwards: bool) -> int:
        """Workers that one decision may move: as the pools' policies leave, else as the resource's behavior says."""
        calm = self.seen.limits.steadiness
        default = calm.up_pods if upwards else calm.down_pods
        left = [pool.up_pods if upwards else pool.down_pods for pool in self.seen.limits.pools]
        return sum(default if pods is None else pods for pods in left) if any(p is not None for p in left) else default

    def question(self, load: Traffic) -> Question:
        """The advisor's, of this load, with the resource's own pools as the offer."""
        limits = self.seen.limits
        return question_of(limits, limits.pools, self.shape, load)


def size_colocated(seen: Observed, now: datetime) -> Decision | None:
    """What to do with workers that do both jobs; None where a resource has none."""
    if not has_both(seen.limits):
        return None
    if (waiting := not_yet(seen, now)) is not None:
        return waiting
    if seen.model is None:
        return hold(seen, "ModelUnknown", "no worker has told the model's shape (tandem_model_info) yet")
    case = Case(seen, now, seen.model, sum(target_of(seen).pools.values()))
    missed = breach(seen.history, seen.limits.slo, seen.limits.interval_s)
    return grown(case, missed) if missed is not None else shrunk(case)


def not_yet(seen: Observed, now: datetime) -> Decision | None:
    """Why nothing can be said of this plan now: its workers do not serve, or the window began before it."""
    if len({(pool.device, pool.gpus, pool.role) for pool in seen.limits.pools}) > 1:
        return hold(seen, "ColocatedPools", "workers of role Both on unlike hardware: how many of each is not chosen")
    age = (now - seen.decided_at).total_seconds() if seen.decided_at else None
    wanted, ready = sum(target_of(seen).pools.values()), len(serving(seen))
    if ready < wanted and (age is None or age < deadline_s(seen.limits)):
        return hold(seen, "MoveOpen", f"serving: {ready} of {wanted} workers")
    seconds = max(seen.history[-1].seconds, 2 * seen.limits.interval_s)
    if age is not None and age < seconds:
        return hold(seen, "Cooldown", f"the target changed {age:.0f} s ago; a window takes {seconds} s to fill")
    return None


def grown(case: Case, missed: Breach) -> Decision:
    """In a breach that is no chance: what the forecast asks for under the newest load, and one more at least."""
    limits, words = case.seen.limits, missed.verdict.message
    if missed.windows < BREACH_WINDOWS or missed.seconds < limits.steadiness.up_window_s:
        return hold(case.seen, "BreachNotConfirmed", f"{words}; {missed.windows} windows, {missed.seconds:.0f} s")
    load = traffic_of(case.seen.history[-missed.windows :])
    sizer = None if load is None else Sizer(case.question(load), measured(case))
    need = None if sizer is None else needed(sizer)
    most = case.size + max(case.step(upwards=True), 0)
    wanted = most if need is None else min(max(need, case.size + 1), most)
    target = with_workers(case.seen, wanted)
    if target is None or sum(target.pools.values()) <= case.size:
        return hold(case.seen, "Infeasible", f"{words}; pools, budget and behavior allow no worker more")
    reason = "TargetsMissed" if need is not None and need <= sum(target.pools.values()) else "BoundedStep"
    return moved(case, reason, target, words, sizer)


def shrunk(case: Case) -> Decision:
    """Within the targets: the fewest that would have carried the busiest of a whole calm window, some at a time."""
    seen, limits = case.seen, case.seen.limits
    verdict = judge_window(seen.history, limits.slo)
    recent = windows_of(seen, case.now)
    if recent is None or not is_calm(recent, limits.slo):
        return hold(seen, verdict.reason, verdict.message)
    load = traffic_of(recent)
    sizer = None if load is None else Sizer(case.question(load), measured(case) * factor_of(1))
    idle = not any(window.arrival_rate for window in recent)
    need = 0 if idle else None if sizer is None else needed(sizer)
    wanted = case.size if need is None else max(need, case.size - max(case.step(upwards=False), 0))
    target = with_workers(seen, min(wanted, case.size))
    if target is None or sum(target.pools.values()) >= case.size:
        told = "" if need is None else f"; {max(need, 1)} workers would do, one standard deviation dearer"
        return hold(seen, verdict.reason, f"{verdict.message}{told}")
    words = f"both targets were met in all {len(recent)} windows of {limits.steadiness.down_window_s} s"
    return moved(case, "SlackConfirmed", target, words, sizer)


def needed(sizer: Sizer) -> int | None:
    """The fewest workers that meet both targets within the bounds; None where none do."""
    plan = best_shared(sizer)
    return None if plan is None else plan.groups[0].workers


def measured(case: Case) -> float:
    """Costs over the data sheet's, by the TPOT of the windows that are all of this plan; 1 where there are none."""
    since = case.seen.decided_at
    own = [
        window
        for window in case.seen.history
        if window.tpot_ms is not None and (since is None or window.at - timedelta(seconds=window.seconds) >= since)
    ]
    load = traffic_of(own)
    if load is None:
        return 1.0
    # TPOT is of the requests that ran, which are fewer than those that arrive where workers fall behind.
    load = replace(load, sized_rate=max(sum(window.request_rate or 0.0 for window in own) / len(own), 1e-9))
    observed = median(window.tpot_ms for window in own if window.tpot_ms is not None)
    question, low, high = case.question(load), FASTEST, SLOWEST
    for _ in range(HALVINGS):
        middle = (low * high) ** 0.5
        found = tpot_ms(Sizer(question, middle), case.size)
        low, high = (low, middle) if found is None or found >= observed else (middle, high)
    return high


def tpot_ms(sizer: Sizer, workers: int) -> float | None:
    """The forecast TPOT of so many workers, ms at the percentile; None beyond their capacity."""
    group = Group(sizer.question.kinds[0], workers)
    return sizer.shared(group, sizer.question.chunks[0]).forecast.decode.latency_ms


def with_workers(seen: Observed, wanted: int) -> Target | None:
    """As many workers as wanted, within every bound: the first pools grow first, the last ones shrink first."""
    counts = dict(target_of(seen).pools)
    for pool in seen.limits.pools:
        counts[pool.name] += min(max(wanted - sum(counts.values()), 0), pool.maximum - counts[pool.name])
    for pool in reversed(seen.limits.pools):
        counts[pool.name] -= min(max(sum(counts.values()) - wanted, 0), counts[pool.name] - pool.minimum)
    return clamp(seen.limits, counts)


def moved(case: Case, reason: str, target: Target, why: str, sizer: Sizer | None) -> Decision:
    """The decision, with what the plan is predicted to give."""
    before, after = target_of(case.seen).pools, target.pools
    words = ", ".join(f"{name} {before[name]} → {count}" for name, count in after.items() if count != before[name])
    if sizer is None:
        return Decision(Action.SCALE, reason, f"{words}: {why}", target)
    told = f"sized for {load_words(sizer.question.traffic)}, costs {sizer.factor:.2f} times the data sheet's"
    return Decision(Action.SCALE, reason, f"{words}: {why}; {told}", target, prediction(sizer, sum(after.values())))


def prediction(sizer: Sizer, workers: int) -> Prediction:
    """What so many workers give, with the best chunk size."""
    group = Group(sizer.question.kinds[0], workers)
    best = max((sizer.shared(group, chunk).forecast for chunk in sizer.question.chunks), key=lambda f: f.attainment)
    return best.prediction()
