"""Split or colocated: which mode a resource of mode Auto is in. Pure; the advisor's own sizing on observed traffic.

The answer is acted on only when it is the same at every cost within one standard deviation of the data sheet, over the
whole span and over both of its halves, and not too soon after the last change. What is not known changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from tandem_operator.plan.advice_words import groups_words
from tandem_operator.plan.advise import SIGMAS, WORTH, factor_of
from tandem_operator.plan.candidates import clamp, is_within_budget
from tandem_operator.plan.colocated import CHUNKS
from tandem_operator.plan.facts import Answer, Prediction, RebalanceMode, Role, Target, Verdict
from tandem_operator.plan.judge import contiguous, judge_metrics
from tandem_operator.plan.kinds import Kind
from tandem_operator.plan.roofline import prior_of
from tandem_operator.plan.sizing import Mode, Plan, Question, Sizer, best_shared, best_split
from tandem_operator.plan.traffic import Traffic, fixed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime

    from tandem_operator.plan.facts import Limits, ModelShape, Observed, PoolLimits, Window

UNOBSERVED_MODE = Mode.COLOCATED  # every worker serves alone, over any network: safe while nothing is known
CALM_SPANS = 6  # confirmation spans between two changes: 30 minutes by default
A_DAY = timedelta(days=1)
MOST_CHANGES = 4  # in a day
ROLES = {Mode.DISAGGREGATED: (Role.PREFILL, Role.DECODE), Mode.COLOCATED: (Role.BOTH,)}


@dataclass(frozen=True, slots=True)
class ModeCase:
    """What the choice may depend on; `observed` and its limits are those of the mode in effect."""

    observed: Observed
    mode: Mode
    pools: tuple[PoolLimits, ...]  # of both modes
    changes: tuple[datetime, ...] = ()  # of the last day, oldest first
    leaving: bool = False  # pools of the former mode still serve

    @property
    def span_s(self) -> int:
        """How long an answer must hold."""
        return self.observed.limits.steadiness.down_window_s

    def pools_of(self, mode: Mode) -> tuple[PoolLimits, ...]:
        """The pools that serve in a mode."""
        return tuple(pool for pool in self.pools if pool.role in ROLES[mode])


@dataclass(frozen=True, slots=True)
class ModeChoice:
    """The mode to be in, and why. `target`: the workers to begin with; None: no change."""

    mode: Mode
    verdict: Verdict
    target: Target | None = None
    predicted: Prediction | None = None


@dataclass(frozen=True, slots=True)
class Weighed:
    """The best plan of each mode under one load; None where the mode cannot meet the targets."""

    sizer: Sizer
    split: Plan | None
    shared: Plan | None

    def wanted(self, present: Mode) -> Mode | None:
        """The mode to be in: a split must save WORTH to come, and stays as long as it saves anything."""
        if self.split is None or self.shared is None:
            found = self.split or self.shared
            return found.mode if found else None
        question = self.sizer.question
        most = 1 - WORTH if present is Mode.COLOCATED else 1.0
        saves = question.cost(self.split.groups) < most * question.cost(self.shared.groups)
        return Mode.DISAGGREGATED if saves else Mode.COLOCATED

    def plan_of(self, mode: Mode) -> Plan | None:
        """The best plan of a mode."""
        return self.split if mode is Mode.DISAGGREGATED else self.shared


def choose_mode(case: ModeCase, now: datetime) -> ModeChoice | None:
    """The mode to be in now; None: nothing new is to be said, since a change is under way or nothing is to run."""
    if case.leaving or case.observed.limits.suspended or case.observed.target is None:
        return None
    known = windows_to_judge(case, now)
    if isinstance(known, Verdict):
        return ModeChoice(case.mode, known)
    load, shape = traffic_of(known), case.observed.model
    if load is None or shape is None:
        lacking = "the model's sizes" if shape is None else "the requests' lengths"
        return ModeChoice(case.mode, unobserved(case, f"{lacking} are not known yet"))
    return answered(case, shape, known, load, now)


def answered(case: ModeCase, shape: ModelShape, known: Sequence[Window], load: Traffic, now: datetime) -> ModeChoice:
    """The advisor's answer for a load that is known, and whether it is acted on."""
    stern = weigh(case, shape, load, 1)
    wanted = stern.wanted(case.mode)
    if wanted is None:
        words = f"neither mode is predicted to meet the targets at {load_words(load)}; {case.mode} is kept"
        return ModeChoice(case.mode, Verdict(Answer.YES, "NoModeReaches", words))
    if wanted is case.mode:
        return ModeChoice(case.mode, Verdict(Answer.YES, "Advised", words_of(stern, wanted)))
    if why := doubt(case, shape, known, load, wanted):
        words = f"{case.mode} is kept, {wanted} is not clearly better: {why}"
        return ModeChoice(case.mode, Verdict(Answer.YES, "NotClear", words))
    return change(case, stern, wanted, now)


def change(case: ModeCase, stern: Weighed, wanted: Mode, now: datetime) -> ModeChoice:
    """The change itself, or what forbids it."""
    words, plan = words_of(stern, wanted), stern.plan_of(wanted)
    target = None if plan is None else target_for(case, plan, wanted)
    if target is None:
        return kept(case, "NoRoom", f"{words}; but the bounds of its pools contradict the budget")
    if case.observed.limits.mode is not RebalanceMode.AUTO:
        return kept(case, "Recommended", f"recommended: {words}; rebalance.mode {case.observed.limits.mode} keeps")
    if why := too_soon(case, now):
        return kept(case, "ChangesSpent", f"{words}; but {why}, which keeps")
    if not has_room(case, target):
        return kept(case, "NoRoom", f"{words}; but the budget has no room for the pools of both modes, which keeps")
    forecast = Sizer(stern.sizer.question, 1.0).forecast(plan) if plan else None
    predicted = None
    if forecast is not None:
        sides = (forecast.prefill.latency_ms, forecast.decode.latency_ms)
        ttft, tpot = (None if ms is None else round(ms) for ms in sides)
        predicted = Prediction(ttft, tpot, forecast.attainment)
    return ModeChoice(wanted, Verdict(Answer.YES, "Advised", words), target, predicted)


def kept(case: ModeCase, reason: str, words: str) -> ModeChoice:
    """The mode in effect stays although the other is advised."""
    return ModeChoice(case.mode, Verdict(Answer.YES, reason, f"{words} {case.mode}"))


def unobserved(case: ModeCase, why: str) -> Verdict:
    """Nothing is known well enough: the mode in effect stays."""
    return Verdict(Answer.UNKNOWN, "Unobserved", f"{case.mode} until traffic is known for {case.span_s} s: {why}")


def windows_to_judge(case: ModeCase, now: datetime) -> Sequence[Window] | Verdict:
    """The windows of one confirmation span without a gap, or why there are none."""
    seen = case.observed
    metrics = judge_metrics(seen, now)
    if metrics.answer is not Answer.YES:
        return unobserved(case, metrics.message)
    since = now - timedelta(seconds=case.span_s)
    recent = [w for w in contiguous(seen.history, seen.limits.interval_s) if w.at >= since]
    covered = (recent[-1].at - recent[0].at).total_seconds() + seen.limits.interval_s if recent else 0.0
    if covered < case.span_s:
        return unobserved(case, f"figures without a gap cover {covered:.0f} s")
    if any(w.arrival_rate is None or (w.request_rate and w.cached_share is None) for w in recent):
        return unobserved(case, "rates or prefix reuse are not known in each window")
    if not any(w.arrival_rate for w in recent):
        return unobserved(case, "no request arrived")
    return recent


def traffic_of(windows: Iterable[Window]) -> Traffic | None:
    """The traffic of some windows, sized for the busiest; None where no lengths are known.

    Lengths and reuse are means over the requests that finished; the spreads are the newest that are known.
    """
    known = [w for w in windows if w.arrival_rate is not None]
    done = [w for w in known if w.request_rate and w.prompt_tokens and w.output_tokens]
    if not done:
        return None
    rates = [w.arrival_rate or 0.0 for w in known]
    bursts = [w.arrival_cv2 for w in known if w.arrival_cv2 is not None]
    spreads = [w.prompt_cv2 for w in done if w.prompt_cv2 is not None]
    prompt = fixed(weighted(done, lambda w: w.prompt_tokens))
    return Traffic(
        mean_rate=sum(rates) / len(rates),
        sized_rate=max(*rates, 1e-9),
        prompt=replace(prompt, variation=spreads[-1] if spreads else None),
        output=fixed(max(weighted(done, lambda w: w.output_tokens), 1.0)),
        burstiness=bursts[-1] if bursts else 1.0,
        hits=min(weighted(done, lambda w: w.cached_share), 1.0),
    )


def weighted(windows: Sequence[Window], value: Callable[[Window], float | None]) -> float:
    """The mean over requests."""
    total = sum(w.request_rate or 0.0 for w in windows)
    return sum((w.request_rate or 0.0) * (value(w) or 0.0) for w in windows) / total


def weigh(case: ModeCase, shape: ModelShape, load: Traffic, sigma: int) -> Weighed:
    """The best plan of each mode, every cost so many standard deviations from the data sheet."""
    sizer = Sizer(question_of(case.observed.limits, case.pools, shape, load), factor_of(sigma))
    return Weighed(sizer, best_split(sizer), best_shared(sizer))


def question_of(limits: Limits, pools: Sequence[PoolLimits], shape: ModelShape, load: Traffic) -> Question:
    """The advisor's question with a resource's own pools as the offer."""
    offers: dict[Role, dict[Kind, int]] = {}
    for pool in pools:
        kind = Kind(pool.device, pool.gpus, prior_of(pool.device, pool.gpus, shape, pool.spread))
        of_role = offers.setdefault(pool.role, {})
        of_role[kind] = of_role.get(kind, 0) + pool.maximum
    kinds = tuple({kind: None for of_role in offers.values() for kind in of_role})
    most = sum(pool.gpus * pool.maximum for pool in pools)
    return Question(
        kinds=kinds,
        traffic=load,
        slo=limits.slo,
        max_batch=limits.max_batch,
        budget_gpus=most if limits.budget_gpus is None else limits.budget_gpus,
        budget_per_device=limits.budget_per_device,
        objective=limits.objective,
        offers=offers,
        chunks=CHUNKS if limits.chunk_tokens is None else (limits.chunk_tokens,),
    )


def doubt(case: ModeCase, shape: ModelShape, windows: Sequence[Window], load: Traffic, wanted: Mode) -> str:
    """Why the other mode is not sure to be better; '' where it is."""
    for sigma in (sigma for sigma in SIGMAS if sigma != 1):  # 1 gave the answer that is doubted
        if weigh(case, shape, load, sigma).wanted(case.mode) is not wanted:
            return f"not if every cost is {sigma} standard deviations from the data sheet's" if sigma else "not by it"
    half = len(windows) // 2
    for part, name in ((windows[:half], "first"), (windows[half:], "second")):
        load_of_part = traffic_of(part)
        if load_of_part is None or weigh(case, shape, load_of_part, 1).wanted(case.mode) is not wanted:
            return f"not by the {name} half of the last {case.span_s} s"
    return ""


def too_soon(case: ModeCase, now: datetime) -> str:
    """Why no change is left now; '' where one is."""
    recent = [at for at in case.changes if now - at < A_DAY]
    if recent and (age := (now - recent[-1]).total_seconds()) < CALM_SPANS * case.span_s:
        return f"the mode changed {age:.0f} s ago, and again after {CALM_SPANS * case.span_s} s at the earliest"
    return f"the mode changed {len(recent)} times in a day" if len(recent) >= MOST_CHANGES else ""


def target_for(case: ModeCase, plan: Plan, mode: Mode) -> Target | None:
    """The plan's workers in the pools that offer them, within every bound of that mode; None: bounds contradict."""
    counts = {pool.name: pool.minimum for pool in case.pools_of(mode)}
    for role, group in zip(ROLES[mode], plan.groups, strict=True):
        left = group.workers
        for pool in case.pools_of(mode):
            if (pool.role, pool.device, pool.gpus) == (role, group.kind.device, group.kind.gpus):
                counts[pool.name] = max(min(left, pool.maximum), pool.minimum)
                left = max(left - counts[pool.name], 0)
    return clamp(replace(case.observed.limits, pools=case.pools_of(mode)), counts)


def has_room(case: ModeCase, target: Target) -> bool:
    """May the pools of both modes run side by side, while the new ones start?"""
    now = case.observed.target.pools if case.observed.target else {}
    return is_within_budget(replace(case.observed.limits, pools=case.pools), {**now, **target.pools})


def words_of(weighed: Weighed, mode: Mode) -> str:
    """The answer with what each mode costs."""
    question = weighed.sizer.question
    best, other = weighed.plan_of(mode), weighed.plan_of(next(m for m in Mode if m is not mode))
    words = f"{mode} at {load_words(question.traffic)}: {cost_words(question, best)}"
    return f"{words}; the other mode: {cost_words(question, other)}"


def cost_words(question: Question, plan: Plan | None) -> str:
    """`2 colocated workers of h100-sxm with chunks of 512 tokens, $6.00/h`."""
    if plan is None:
        return "none within the bounds meets the targets"
    cost, unit = question.cost(plan.groups), question.unit
    price = {"USD": f"${cost:,.2f}/h", "W": f"{cost:,.0f} W", "GPUs": f"{cost:.0f} GPUs"}[unit]
    return f"{groups_words(plan)}, {price}"


def load_words(load: Traffic) -> str:
    """`up to 2.4 requests/s of 512 and 64 tokens, 10 % cached`."""
    lengths = f"{load.prompt.mean:,.0f} and {load.output.mean:,.0f} tokens"
    return f"up to {load.sized_rate:.2f} requests/s of {lengths}, {100 * load.hits:.0f} % cached"
