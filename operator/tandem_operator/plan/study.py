"""What the moves are weighed on: the load, the calibrated model and the search among all plans of one step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from statistics import median
from typing import TYPE_CHECKING

from tandem_operator.plan.calibrate import UNCALIBRATED, calibrate, calibrate_pools
from tandem_operator.plan.candidates import cost_of, crews, is_legal
from tandem_operator.plan.desk import Desk, Option
from tandem_operator.plan.facts import Answer, Role, Target, Verdict
from tandem_operator.plan.judge import Breach, breach, is_idle
from tandem_operator.plan.outlook import LEAST_WINDOWS, outlook
from tandem_operator.plan.predict import Load, Model
from tandem_operator.plan.roofline import Prior, prior_of, weighed
from tandem_operator.plan.scenarios import came_in, certain, foreseen
from tandem_operator.plan.search import Bar, Region, Search
from tandem_operator.plan.starts import expected_start_s

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from tandem_operator.plan.calibrate import Calibration, Fit
    from tandem_operator.plan.facts import Limits, ModelShape, Observed, Window
    from tandem_operator.plan.predict import Crew, Forecast
    from tandem_operator.plan.scenarios import Came, Demand
    from tandem_operator.plan.search import Found

TIME_LEFT = 0.8  # prefill workers below this busy share are not what prompts wait for
MIN_EXCESS = 3  # windows that must tell the same
LEAST_EXCESS, MOST_EXCESS = 1.1, 4.0
LONG_QUEUE = 2.0  # prompts for each prefill worker
CLEARLY = 0.05  # a move must promise this much more attainment than staying
OVERLOADED = 0.05  # a plan below this attainment is sure to fail, as one beyond its capacity is
LESS_OVERLOAD = 0.9  # ... another may then replace it that has at most this share of its overload


@dataclass(frozen=True)
class Study:
    """All that a move may be derived from; plans are searched for when they are first asked for."""

    seen: Observed
    now: datetime
    load: Load
    model: Model
    desk: Desk
    current: Option
    breach: Breach | None
    ahead_s: float = 0.0  # the load is what is forecast so many seconds from now; 0: what is

    @property
    def wanted(self) -> float:
        """The attainment that the SLO asks for, 0..1."""
        return self.seen.limits.slo.percentile / 100

    def is_feasible(self, option: Option) -> bool:
        """Does this option meet the SLO even if the model is one standard deviation too kind?"""
        return option.sure >= self.wanted

    @cached_property
    def later(self) -> Study | None:
        """The same under the loads to provide for until new replicas serve; None: the model is not known yet."""
        start_s, shape, history = expected_start_s(self.seen), self.seen.model, self.seen.history
        if start_s is None or shape is None:
            return None
        load = outlook(history, self.load, start_s, self.seen.limits.slo.percentile)
        desk = Desk(self.seen.limits, shape, load, self.model, self.seen.limits.slo, (self.foreseen,))
        current = desk.weigh(self.current.target, self.current.target)
        return replace(self, load=load, desk=desk, current=current, ahead_s=start_s)

    @cached_property
    def foreseen(self) -> Demand:
        """The loads that may come by the time that new replicas serve."""
        history, start_s = self.seen.history, expected_start_s(self.seen)
        if start_s is None or len(history) < LEAST_WINDOWS:
            return certain(self.load)
        return foreseen(history, self.came, self.load, start_s)

    @cached_property
    def came(self) -> list[Came | None]:
        """What each window of the history brought."""
        return [came_in(window, self.load) for window in self.seen.history]

    @cached_property
    def search(self) -> Search:
        """The plans that one step reaches."""
        return Search(self.desk, self.current.target, self.seen.limits.steadiness.up_pods)

    @property
    def within_step(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The least and the most replicas by pool that one step may choose."""
        return reach(self.seen.limits, self.search.now)

    @cached_property
    def better_flip(self) -> Option | None:
        """The least flips of the present workers that meet the SLO and are clearly better than staying."""
        here = self.search.now
        return self.option(self.search.cheapest(Region(here, here), self._better))

    @cached_property
    def better_plan(self) -> Option | None:
        """The cheapest plan that does, of at least as many GPUs; if growing alone is enough, no pool gives any away."""
        low, high = self.within_step
        least = self.current.gpus
        grown = Region(self.search.now, high, least)
        anywhere = Region(low, high, least)
        return self.option(self.search.cheapest(grown, self._better) or self.search.cheapest(anywhere, self._better))

    def closest(self, *, may_scale: bool) -> Option:
        """The plan that comes closest to the SLO, of at least as many GPUs."""
        here = self.search.now
        low, high = reach(self.seen.limits, here) if may_scale else (here, here)
        lighter = LESS_OVERLOAD * self.current.forecast.overload if self.current.forecast.overload > 1 else inf
        return self.option(self.search.closest(Region(low, high, self.current.gpus), lighter)) or self.current

    def option(self, found: Found | None) -> Option | None:
        """A plan that was found, with its latencies."""
        return None if found is None else self.desk.weigh(self.search.target(found), self.current.target)

    def neighbours(self, option: Option, count: int) -> list[Option]:
        """The best plans one flip or one replica away, the present one left out: what an engineer would ask about."""
        limits, target = self.seen.limits, option.target
        shifts = [(target.pools, target.prefill + d) for d in (-1, 1)]
        for pool in limits.pools:
            for d in (-1, 1):
                pools = {**target.pools, pool.name: target.pools[pool.name] + d}
                shifts.append((pools, target.prefill + (d if pool.role is Role.PREFILL else 0)))
        targets = [Target(pools, prefill, sum(pools.values()) - prefill) for pools, prefill in shifts]
        legal = [t for t in targets if t != self.current.target and is_legal(limits, t)]
        ranked = sorted(legal, key=lambda t: (-round(self.desk.rate_of(t).sure, 3), cost_of(limits, t.pools)))
        return [self.desk.weigh(t, self.current.target) for t in ranked[:count]]

    @property
    def _better(self) -> Bar:
        """Feasible, and clearly better than staying."""
        now = self.current
        return Bar(now.forecast.attainment + CLEARLY, max(self.wanted, now.sure + CLEARLY))


def reach(limits: Limits, now: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The least and the most replicas by pool that one step may choose."""
    calm = limits.steadiness
    up = [calm.up_pods if p.up_pods is None else p.up_pods for p in limits.pools]
    down = [calm.down_pods if p.down_pods is None else p.down_pods for p in limits.pools]
    low = tuple(max(p.minimum, n - d) for p, n, d in zip(limits.pools, now, down, strict=True))
    high = tuple(min(p.maximum, n + u) for p, n, u in zip(limits.pools, now, up, strict=True))
    return low, high


def study(seen: Observed, now: datetime) -> Study | Verdict:
    """Everything that is computed once; a Verdict (UNKNOWN) when the model may not be trusted to predict yet."""
    target, shape, limits = seen.target, seen.model, seen.limits
    if target is None or not seen.history:
        return Verdict(Answer.UNKNOWN, "NoSamples", "there is no target or no window to study")
    if shape is None:
        return Verdict(Answer.UNKNOWN, "ModelUnknown", "no worker has told the model's shape (tandem_model_info) yet")
    calibration = calibration_of(seen, target, shape)
    load = load_of(seen.history, calibration.computed_share)
    model = model_of(calibration, load, batch_room(seen.history, limits.max_batch))
    if isinstance(model, Verdict):
        return model
    model = with_pools(model, seen, shape, calibration.computed_share)
    desk = Desk(limits, shape, load, model, limits.slo)
    current = desk.weigh(target, target)
    corrected = less_kind(model, current.forecast, seen, now)
    if corrected != model:
        model, desk = corrected, Desk(limits, shape, load, corrected, limits.slo)
        current = desk.weigh(target, target)
    return Study(seen, now, load, model, desk, current, breach(seen.history, limits.slo, limits.interval_s))


def calibration_of(seen: Observed, target: Target, shape: ModelShape) -> Calibration:
    """Both roles' fits. Mixed hardware is fitted on its mean worker: devices keep their data sheets' ratio."""
    prefill, decode = crews(seen.limits, target, shape)
    return calibrate(mean_prior(prefill or decode), mean_prior(decode or prefill), seen.history)


def with_pools(model: Model, seen: Observed, shape: ModelShape, share: float) -> Model:
    """The model with the fits of pools that the metrics tell apart."""
    if not any(w.prefill_of or w.decode_of for w in seen.history):
        return model
    priors = {p.name: prior_of(p.device, p.gpus, shape, p.spread) for p in seen.limits.pools}
    prefill, decode = (calibrate_pools(priors, role, seen.history, share) for role in (Role.PREFILL, Role.DECODE))
    return replace(model, prefill_of=prefill, decode_of=decode)


def mean_prior(members: Sequence[Crew]) -> Prior:
    """The mean of the workers' costs and of their room."""
    shares = [(c.workers / sum(m.workers for m in members), c.prior) for c in members]
    return replace(weighed(shares), kv_room_tokens=sum(share * prior.kv_room_tokens for share, prior in shares))


def load_of(history: Sequence[Window], computed_share: float) -> Load:
    """The demand by the newest window; lengths that it does not know come from the newest that does."""
    seen = history[-1]
    prompt = newest([w.prompt_tokens for w in history]) or 0.0
    output = newest([w.output_tokens for w in history]) or 0.0
    return Load(
        arrival_rate=0.0 if is_idle(seen) else seen.arrival_rate or 0.0,
        prompt_tokens=prompt,
        computed_tokens=prompt * computed_share,
        output_tokens=output,
        waiting_tokens=seen.prefill.waiting_tokens or 0.0,
        arrival_cv2=newest([w.arrival_cv2 for w in history]),
        prompt_cv2=newest([w.prompt_cv2 for w in history]),
    )


def newest(values: Sequence[float | None]) -> float | None:
    """The last value that is known."""
    return next((v for v in reversed(values) if v is not None), None)


def less_kind(model: Model, forecast: Forecast, seen: Observed, now: datetime) -> Model:
    """The model with the factors by which observed latencies exceed what it gives for the present plan.

    Lengths that vary much, a slow network, a busy node: what the formulas leave out shows as targets that are missed
    although they should be met. Only after full windows of this plan, and only for a target that each of them misses.
    """
    recent = windows_of_this_plan(seen, now)
    slo = seen.limits.slo
    ttft = 1.0  # a queue that is left from an overload explains late first tokens; the formulas need no correction
    if not is_queue_long(seen):
        ttft = excess([w.ttft_ms for w in recent], forecast.prefill.latency_ms, slo.ttft_ms)
    tpot = excess([w.tpot_ms for w in recent], forecast.decode.latency_ms, slo.tpot_ms)
    return replace(model, ttft_factor=ttft, tpot_factor=tpot)


def is_queue_long(seen: Observed) -> bool:
    """Do more prompts wait than a steady load would leave: LONG_QUEUE for each prefill worker?"""
    last = seen.history[-1]
    return (last.prefill.waiting or 0.0) > LONG_QUEUE * max(last.prefill_workers or 1, 1)


def windows_of_this_plan(seen: Observed, now: datetime) -> Sequence[Window]:
    """The newest windows that are all of this plan, over one window's length but MIN_EXCESS at least; else none."""
    newest_window, target = seen.history[-1], seen.target
    settled_s = 2 * max(newest_window.seconds, 2 * seen.limits.interval_s)
    if seen.decided_at is not None and (now - seen.decided_at).total_seconds() < settled_s:
        return ()
    found: list[Window] = []
    for window in reversed(seen.history):
        is_near = (newest_window.at - window.at).total_seconds() < newest_window.seconds
        if target is None or not served_as(window, target) or not (is_near or len(found) < MIN_EXCESS):
            break
        found.append(window)
    return found


def served_as(window: Window, target: Target) -> bool:
    """Did the target's workers serve when the window was taken? An unknown count does not contradict it."""
    return window.prefill_workers in (None, target.prefill) and window.decode_workers in (None, target.decode)


def excess(seen_ms: Sequence[int | None], predicted_ms: float | None, target_ms: int) -> float:
    """Median of observed over predicted, 1.1 to 4, where every window missed the target; else 1."""
    known = [ms for ms in seen_ms if ms is not None]
    if len(known) < MIN_EXCESS or len(known) < len(seen_ms) or not predicted_ms or min(known) <= target_ms:
        return 1.0
    factor = median(known) / predicted_ms
    return 1.0 if factor < LEAST_EXCESS else min(factor, MOST_EXCESS)


def batch_room(history: Sequence[Window], most: int) -> float:
    """Requests that a decode worker takes at once: as configured, or as it shows when prompts wait for tickets.

    Prompts that wait while prefill workers have time wait for tickets: then the batch that runs is all that there is
    room for (KV memory, long contexts), whatever the configuration says. Some windows must agree: at the onset of a
    burst prompts wait as well, and the mean over the window still says that the workers have time. And a batch that ran
    once has room: prompts also wait behind a long one while other prefill workers are idle.
    """
    shown = max(shown_room(window, most) for window in history[-MIN_EXCESS:])
    return min(max(shown, *(ran(window, history[-1]) for window in history)), float(most))


def ran(window: Window, now: Window) -> float:
    """The batch that ran in a window, in requests of the length of now; 0 where it is not known."""
    use, then, here = window.decode, window.prompt_tokens, now.prompt_tokens
    if not use.tokens_rate or not use.steps_rate or not then or not here:
        return 0.0
    return use.tokens_rate / use.steps_rate * min(then / here, 1.0)


def shown_room(seen: Window, most: int) -> float:
    """The batch that this window shows as all that there is room for; `most` if it shows none."""
    prefill, decode = seen.prefill, seen.decode
    if not prefill.waiting or prefill.busy is None or not seen.prefill_workers:
        return most
    if not decode.tokens_rate or not decode.steps_rate or prefill.busy > TIME_LEFT * seen.prefill_workers:
        return most
    if seen.arrival_rate is None or prefill.waiting < seen.arrival_rate:  # less than a second's arrivals is chance
        return most
    return min(float(most), max(decode.tokens_rate / decode.steps_rate, 1.0))


def model_of(calibration: Calibration, load: Load, max_batch: float) -> Model | Verdict:
    """The calibrated model; UNKNOWN while a role that the load needs has not been observed at work."""
    if load.arrival_rate > 0 and (load.prompt_tokens <= 0 or load.output_tokens <= 0):
        return Verdict(Answer.UNKNOWN, "NoSamples", "requests arrive, but none has finished: lengths are not known")
    needs: tuple[tuple[str, Fit | None, bool], ...] = (
        ("prefill", calibration.prefill, load.computed_tokens > 0),
        ("decode", calibration.decode, load.output_tokens > 1),
    )
    for role, fit, is_needed in needs:
        if fit is None and is_needed and load.arrival_rate > 0:
            return Verdict(Answer.UNKNOWN, "NotCalibrated", f"no window shows {role} workers at work yet")
    # A role that the load does not need has no cost to be asked for; the plain prior stands in.
    return Model(calibration.prefill or UNCALIBRATED, calibration.decode or UNCALIBRATED, max_batch)
