"""What the moves are weighed on: the load, the calibrated model and every option's forecast."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from statistics import median
from typing import TYPE_CHECKING

from tandem_operator.plan.calibrate import UNCALIBRATED, calibrate
from tandem_operator.plan.candidates import Step, candidates, change_between, cost_of, crews, gpus_of
from tandem_operator.plan.facts import Answer, Slo, Verdict
from tandem_operator.plan.judge import Breach, breach, is_idle
from tandem_operator.plan.predict import Forecast, Load, Model, drain_s, predict_tpot, predict_ttft, together
from tandem_operator.plan.roofline import Prior

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from tandem_operator.plan.calibrate import Calibration, Fit
    from tandem_operator.plan.facts import Limits, ModelShape, Observed, Target, Window
    from tandem_operator.plan.predict import Crew, Side

TIME_LEFT = 0.8  # prefill workers below this busy share are not what prompts wait for
MIN_EXCESS = 3  # windows that must tell the same
LEAST_EXCESS, MOST_EXCESS = 1.1, 4.0
LONG_QUEUE = 2.0  # prompts for each prefill worker
HEADROOM = 0.8  # a smaller plan must do with this share of both targets before a pool shrinks


@dataclass(frozen=True, slots=True)
class Option:
    """One legal target, what it would give, and what it takes."""

    target: Target
    forecast: Forecast
    sure: float  # attainment less its uncertainty (every cost one standard deviation higher)
    cost: float
    gpus: int
    change: int


@dataclass(frozen=True, slots=True)
class Study:
    """All that a move may be derived from; `current` is among the `options`."""

    seen: Observed
    now: datetime
    load: Load
    model: Model
    current: Option
    options: tuple[Option, ...]
    breach: Breach | None

    @property
    def wanted(self) -> float:
        """The attainment that the SLO asks for, 0..1."""
        return self.seen.limits.slo.percentile / 100

    def is_feasible(self, option: Option) -> bool:
        """Does this option meet the SLO even if the model is one standard deviation too kind?"""
        return option.sure >= self.wanted


def study(seen: Observed, now: datetime) -> Study | Verdict:
    """Everything computed once; a Verdict (UNKNOWN) when the model may not be trusted to predict yet."""
    target, shape = seen.target, seen.model
    if target is None or not seen.history:
        return Verdict(Answer.UNKNOWN, "NoSamples", "there is no target or no window to study")
    if shape is None:
        return Verdict(Answer.UNKNOWN, "ModelUnknown", "no worker has told the model's shape (tandem_model_info) yet")
    calibration = calibration_of(seen, target, shape)
    load = load_of(seen.history, calibration.computed_share)
    model = model_of(calibration, load, batch_room(seen.history, seen.limits.max_batch))
    if isinstance(model, Verdict):
        return model
    step = Step(seen.limits.steadiness.up_pods, seen.limits.steadiness.down_pods, seen.limits.steadiness.up_pods)
    first = Desk(seen.limits, shape, load, model, seen.limits.slo).weigh(target, target)
    model = less_kind(model, first.forecast, seen, now)
    desk = Desk(seen.limits, shape, load, model, seen.limits.slo)
    current = desk.weigh(target, target)
    others = tuple(desk.weigh(c, target) for c in candidates(seen.limits, target, step) if c != target)
    return Study(seen, now, load, model, current, (current, *others), breach(seen.history, seen.limits.slo))


def calibration_of(seen: Observed, target: Target, shape: ModelShape) -> Calibration:
    """Both roles' fits. Mixed hardware is fitted on its mean worker: devices keep their data sheets' ratio."""
    prefill, decode = crews(seen.limits, target, shape)
    return calibrate(mean_prior(prefill or decode), mean_prior(decode or prefill), seen.history)


def mean_prior(members: Sequence[Crew]) -> Prior:
    """The mean of the workers' costs, field by field."""
    total = sum(c.workers for c in members)
    return Prior(**{f.name: sum(c.workers * getattr(c.prior, f.name) for c in members) / total for f in fields(Prior)})


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
    )


def newest(values: Sequence[float | None]) -> float | None:
    """The last value that is known."""
    return next((v for v in reversed(values) if v is not None), None)


def less_kind(model: Model, forecast: Forecast, seen: Observed, now: datetime) -> Model:
    """The model with the factors by which observed latencies exceed what it gives for the present plan.

    Lengths that vary much, a slow network, a busy node: what the formulas leave out shows as targets that are missed
    although they should be met. Only after two full windows of this plan, and only for a target that is missed.
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
    """The windows of the last window's length, if the target has stood for two of them; else none."""
    newest_window = seen.history[-1]
    settled_s = 2 * max(newest_window.seconds, 2 * seen.limits.interval_s)
    if seen.decided_at is not None and (now - seen.decided_at).total_seconds() < settled_s:
        return ()
    return [w for w in seen.history if (newest_window.at - w.at).total_seconds() < newest_window.seconds]


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
    room for (KV memory, long contexts), whatever the configuration says.
    """
    seen = history[-1]
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


class Desk:
    """Weighs targets for one load and one model; a crew is forecast once, however many targets it is part of."""

    def __init__(self, limits: Limits, shape: ModelShape, load: Load, model: Model, slo: Slo) -> None:
        """Keep the question; nothing is computed yet."""
        self._limits, self._shape, self._load, self._slo = limits, shape, load, slo
        self._models = (model, replace(model, pessimism=1.0))
        self._prefill: dict[tuple[Crew, ...], tuple[Side, Side]] = {}
        self._decode: dict[tuple[Crew, ...], tuple[Side, Side]] = {}

    def weigh(self, target: Target, now: Target) -> Option:
        """The option of going from the target `now` to `target`."""
        prefill, decode = crews(self._limits, target, self._shape)
        if prefill not in self._prefill:
            kind, stern = (predict_ttft(prefill, self._load, m, self._slo) for m in self._models)
            self._prefill[prefill] = kind, stern
        if decode not in self._decode:
            kind, stern = (predict_tpot(decode, self._load, m, self._slo) for m in self._models)
            self._decode[decode] = kind, stern
        drain = drain_s(prefill, self._load, self._models[0])
        kind_view, stern_view = (together(self._prefill[prefill][i], self._decode[decode][i], drain) for i in range(2))
        pools = target.pools
        return Option(
            target,
            kind_view,
            min(kind_view.attainment, stern_view.attainment),
            cost_of(self._limits, pools),
            gpus_of(self._limits, pools),
            change_between(self._limits, now, target),
        )


def with_headroom(slo: Slo) -> Slo:
    """The targets a smaller plan has to meet."""
    return Slo(max(round(slo.ttft_ms * HEADROOM), 1), max(round(slo.tpot_ms * HEADROOM), 1), slo.percentile)
