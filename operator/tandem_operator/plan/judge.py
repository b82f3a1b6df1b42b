"""Judgements of what was observed, each with 'unknown' among its answers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from tandem_operator.plan.candidates import gpus_of, is_legal, is_within_budget
from tandem_operator.plan.facts import Action, Answer, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from tandem_operator.plan.facts import Decision, Limits, Observed, Slo, Target, Window

STALE_INTERVALS = 3.0  # a newest window older than so many intervals is no news
GAP_INTERVALS = 2.5  # windows further apart than this are not consecutive
TELLING = 3  # windows, the newest included, that say whether a queue grows
OUTRUN = 1.15  # arrivals over completions: beyond this and a growing queue, the system falls behind
NOT_READY_AFTER_S = 120.0  # pods that are still not ready this long after a decision are a limit, not a start-up


def judge_metrics(seen: Observed, now: datetime) -> Verdict:
    """May the newest window be believed? Passes the observer's verdict through and adds freshness."""
    if seen.metrics.answer is not Answer.YES:
        return seen.metrics
    if not seen.history:
        return Verdict(Answer.UNKNOWN, "NoSamples", "no window of metrics was observed yet")
    age = (now - seen.history[-1].at).total_seconds()
    if age > STALE_INTERVALS * seen.limits.interval_s:
        limit = STALE_INTERVALS * seen.limits.interval_s
        return Verdict(Answer.UNKNOWN, "StaleSamples", f"the newest window is {age:.0f} s old, more than {limit:.0f} s")
    if seen.history[-1].arrival_rate is None:
        return Verdict(Answer.UNKNOWN, "NoSamples", "the router's arrival rate is not known")
    return seen.metrics


def judge_slo(seen: Observed, now: datetime, decision: Decision | None = None) -> Verdict:
    """The condition SLOMet: are both targets met in the newest window? No traffic is unknown, never a pass."""
    metrics = judge_metrics(seen, now)
    if metrics.answer is not Answer.YES:
        return Verdict(Answer.UNKNOWN, metrics.reason, metrics.message)
    verdict = judge_window(seen.history, seen.limits.slo)
    if verdict.answer is Answer.NO and decision is not None and decision.reason == "Infeasible":
        return Verdict(Answer.NO, "Infeasible", decision.message)
    return verdict


# Every other reason is a no.
ANSWERS = {"NoTraffic": Answer.UNKNOWN, "NoSamples": Answer.UNKNOWN, "WithinTargets": Answer.YES}


def judge_window(history: Sequence[Window], slo: Slo) -> Verdict:
    """The newest window against the targets; no traffic and no samples are unknown, never a pass."""
    reason, seen = reason_of(history, slo), history[-1]
    words = {
        "NoTraffic": f"no request arrived in {seen.seconds} s",
        "ArrivalsOutrunCompletions": falls_behind(history),
        "NoSamples": "requests arrive, but none has a TTFT yet",
    }
    return Verdict(answer_of(reason), reason, words.get(reason) or latency_words(seen, slo))


def answer_of(reason: str) -> Answer:
    """What a reason of `judge_window` answers."""
    return ANSWERS.get(reason, Answer.NO)


def reason_of(history: Sequence[Window], slo: Slo) -> str:
    """Why the newest window passes, fails or says nothing, without the words.

    By attainment where it is known (it counts requests that miss either target), else by the percentiles.
    """
    seen = history[-1]
    if is_idle(seen):
        return "NoTraffic"
    if falls_behind(history):
        return "ArrivalsOutrunCompletions"
    if seen.attainment is None and seen.ttft_ms is None:
        return "NoSamples"
    slow = too_slow(seen, slo)
    if not slow if seen.attainment is None else seen.attainment * 100 >= slo.percentile:
        return "WithinTargets"
    if len(slow) == 1:
        return f"{slow[0]}AboveTarget"
    return "BothAboveTargets" if slow else "AttainmentBelowTarget"


def too_slow(seen: Window, slo: Slo) -> list[str]:
    """The latencies that are known and above their targets."""
    return [name for name, ms, target in latencies(seen, slo) if ms is not None and ms > target]


def is_idle(seen: Window) -> bool:
    """Metrics are there and say that nothing arrives, finishes or waits."""
    return seen.arrival_rate == 0 and not seen.request_rate and not seen.prefill.waiting and not seen.decode.waiting


def latencies(seen: Window, slo: Slo) -> tuple[tuple[str, int | None, int], ...]:
    """(name, observed ms, target ms) of both."""
    return ("TTFT", seen.ttft_ms, slo.ttft_ms), ("TPOT", seen.tpot_ms, slo.tpot_ms)


def latency_words(seen: Window, slo: Slo) -> str:
    """`TTFT p90 4,210 ms > 1,500 ms, TPOT p90 84 ms <= 120 ms, attainment 41 %`."""
    words = []
    for name, ms, target in latencies(seen, slo):
        if ms is None:
            words.append(f"{name} p{slo.percentile} unknown")
        else:
            words.append(f"{name} p{slo.percentile} {ms:,} ms {'>' if ms > target else '<='} {target:,} ms")
    if seen.attainment is not None:
        words.append(f"attainment {seen.attainment:.0%}".replace("%", " %"))
    return ", ".join(words)


def falls_behind(history: Sequence[Window]) -> str:
    """Words if arrivals outrun completions and the queues grow; '' if not or not known.

    TTFT has samples only from requests that got their first token: a starving role shows here first.
    """
    if len(history) < TELLING:
        return ""
    seen, past = history[-1], history[-TELLING]
    if seen.arrival_rate is None or seen.request_rate is None or seen.arrival_rate <= OUTRUN * seen.request_rate:
        return ""
    queues = [
        ("prompt tokens", seen.prefill.waiting_tokens, past.prefill.waiting_tokens),
        ("requests", total_waiting(seen), total_waiting(past)),
    ]
    for unit, after, earlier in queues:
        if after is not None and earlier is not None and after > max(earlier, 1.0) and after > 2 * seen.arrival_rate:
            rates = f"{seen.arrival_rate:.2f} requests/s arrive and {seen.request_rate:.2f} finish"
            return f"{rates}; {after:,.0f} {unit} wait, {earlier:,.0f} two windows ago"
    return ""


def total_waiting(seen: Window) -> float | None:
    """Requests that wait on either side; None when neither is known."""
    known = [w for w in (seen.prefill.waiting, seen.decode.waiting) if w is not None]
    return sum(known) if known else None


@dataclass(frozen=True, slots=True)
class Breach:
    """Consecutive windows, ending with the newest, that missed a target."""

    windows: int
    seconds: float
    verdict: Verdict


def breach(history: Sequence[Window], slo: Slo, interval_s: int | None = None) -> Breach | None:
    """The present breach, or None when the newest window is within its targets or unknown.

    With `interval_s` it counts back to the last gap at most: what was missed before a pause or an outage says nothing
    about now.
    """
    if interval_s is not None:
        history = contiguous(history, interval_s)
    verdict = judge_window(history, slo) if history else None
    if verdict is None or verdict.answer is not Answer.NO:
        return None
    windows = 1
    while windows < len(history) and answer_of(reason_of(before(history, windows), slo)) is Answer.NO:
        windows += 1
    return Breach(windows, (history[-1].at - history[-windows].at).total_seconds(), verdict)


def before(history: Sequence[Window], windows: int) -> Sequence[Window]:
    """What the newest window but so many is judged by: itself and those that tell whether a queue grows."""
    end = len(history) - windows
    return history[max(end - TELLING, 0) : end]


def contiguous(history: Sequence[Window], interval_s: int) -> Sequence[Window]:
    """The newest windows without a gap: what came before an outage says nothing about now."""
    start, widest = len(history), timedelta(seconds=GAP_INTERVALS * interval_s)
    while start > 1 and history[start - 1].at - history[start - 2].at <= widest:
        start -= 1
    return history[max(start - 1, 0) :]


def judge_scaling(seen: Observed, now: datetime) -> Verdict:
    """The condition ScalingLimited: do bounds or the cluster keep the planner from what it wants?"""
    if seen.target is None:
        return Verdict(Answer.UNKNOWN, "NoTarget", "no target is chosen yet")
    since = (now - seen.decided_at).total_seconds() if seen.decided_at else 0.0
    lacking = [p for p in seen.pools if lacks(p.name, p.ready, seen.target)]
    short = [f"{p.name} {p.ready}/{seen.target.pools.get(p.name, 0)}" for p in lacking]
    if short and since > NOT_READY_AFTER_S:
        return Verdict(Answer.YES, "PodsNotReady", f"{', '.join(short)} workers ready {since:.0f} s after the decision")
    missed = breach(seen.history, seen.limits.slo, seen.limits.interval_s)
    if missed and is_legal(seen.limits, seen.target) and not may_grow(seen.limits, seen.target):
        words = ", ".join(f"{name} {count}" for name, count in seen.target.pools.items())
        bound = ", ".join(binding(seen.limits, seen.target))
        message = f"targets are missed (SLOMet has the figures), and no worker may be added to {words}: {bound}"
        return Verdict(Answer.YES, "AtMaximum", message)
    return Verdict(Answer.NO, "WithinBounds", "no bound keeps the planner from its choice")


def lacks(name: str, ready: int, target: Target) -> bool:
    """Has the pool fewer ready workers than its target?"""
    return ready < target.pools.get(name, 0)


def may_grow(limits: Limits, target: Target) -> bool:
    """Is there a legal target with more workers?"""
    grown = ((p, {**target.pools, p.name: target.pools[p.name] + 1}) for p in limits.pools)
    return any(pools[p.name] <= p.maximum and is_within_budget(limits, pools) for p, pools in grown)


def binding(limits: Limits, target: Target) -> list[str]:
    """What keeps each pool from one more replica, in words of the spec's figures alone, so that they stay."""
    found: list[str] = []
    for pool in limits.pools:
        count = target.pools[pool.name]
        grown = {**target.pools, pool.name: count + 1}
        words = [f"pool {pool.name} has its maximum of {pool.maximum}"] if count >= pool.maximum else []
        found += words or exceeded(limits, grown)
    return list(dict.fromkeys(found))


def exceeded(limits: Limits, pools: Mapping[str, int]) -> list[str]:
    """The budgets that these replicas are beyond."""
    found = []
    if limits.budget_gpus is not None and gpus_of(limits, pools) > limits.budget_gpus:
        found.append(f"the budget is {limits.budget_gpus} GPUs")
    for name, most in limits.budget_per_device.items():
        if sum(p.gpus * pools.get(p.name, 0) for p in limits.pools if p.device.name == name) > most:
            found.append(f"the budget is {most} GPUs of {name}")
    return found


def is_move(action: Action) -> bool:
    """Does this action change the target?"""
    return action in {Action.INITIALIZE, Action.ADOPT, Action.FLIP, Action.SCALE}
