"""How long one decision takes: two pools of up to 64 replicas, flips, any step. CPU time of one thread."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from statistics import median
from time import process_time
from typing import TYPE_CHECKING

from e2e.bench.table import Row, against, write
from tandem_operator.plan.decide import decide
from tandem_operator.plan.facts import (
    Answer,
    Device,
    Limits,
    ModelShape,
    Observed,
    PoolLimits,
    PoolState,
    RebalanceMode,
    Role,
    RoleUse,
    Slo,
    Steadiness,
    Target,
    Verdict,
    Window,
    WorkerState,
)

if TYPE_CHECKING:
    from tandem_operator.plan.facts import Decision

MOST = 64  # replicas of each pool
GOAL_MS = 10.0
RUNS = 60
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
MODEL = ModelShape(70_553_706_496, 80, 8192, 64, 8, 128, 128_256, 2)
H100 = Device("h100-sxm", 989.5e12, 80e9, 3.35e12, 50e9, 3.0)
H200 = Device("h200-sxm", 989.5e12, 141e9, 4.8e12, 50e9, 3.8)
WINDOWS = 120  # as many as the operator keeps
# What a cluster shows besides: how much the load and all else vary from window to window, bursts and mixed lengths.
SEED, LOAD, NOISE = 1, 0.1, 0.03
ARRIVAL_CV2, PROMPT_CV2 = 1.8, 0.6
START_S = 120.0  # of a replica

PROMPT, OUTPUT = 2000.0, 200.0  # tokens
# What a worker of four GPUs really takes: a prompt token, a decode step, and each request in it.
PROMPT_TOKEN_S, STEP_S, REQUEST_S = 9e-5, 0.02, 0.0004
FULL = 64.0  # requests that a decode worker runs at once


def batch_at(rate: float) -> float:
    """Requests side by side on a worker that emits so many tokens per second."""
    return min(rate * STEP_S / (1 - rate * REQUEST_S), FULL) if rate * REQUEST_S < 1 else FULL


def window(at: datetime, rps: float, target: Target) -> Window:
    """What such workers would show; a side that is full is busy all the time, and nothing is in time."""
    prompts = min(rps * PROMPT * PROMPT_TOKEN_S, float(target.prefill))
    batch = batch_at(rps * (OUTPUT - 1) / target.decode)
    step = STEP_S + REQUEST_S * batch
    missed = prompts >= target.prefill or batch >= FULL
    queued = 40.0 if missed else 0.0
    return Window(
        at, 30, rps, rps, PROMPT, OUTPUT, 4000 if missed else 300, round(1000 * step), 0.2 if missed else 0.99,
        RoleUse(prompts, prompts / PROMPT_TOKEN_S, None, queued, queued * PROMPT),
        RoleUse(float(target.decode), target.decode * batch / step, target.decode / step, 0.0, None),
        target.prefill, target.decode,
    )  # fmt: skip


def case(rps: float, replicas: tuple[int, int], decode: Device = H200) -> Observed:
    """A settled resource at this load."""
    pools = (
        PoolLimits("prefill", Role.PREFILL, H100, 4, 1, MOST, 4),
        PoolLimits("decode", Role.DECODE, decode, 4, 1, MOST, 4),
    )
    steps = Steadiness(up_pods=MOST, down_pods=MOST)
    limits = Limits(Slo(1000, 45, 95), RebalanceMode.AUTO, pools, role_flips=True, steadiness=steps)
    target = Target(dict(zip(("prefill", "decode"), replicas, strict=True)), *replicas)
    history = tuple(window(NOW - timedelta(seconds=15 * n), rps, target) for n in reversed(range(WINDOWS)))
    workers = tuple(
        WorkerState(f"{name}-{n}", name, role, ready=True, load=1.0, age_s=600.0)
        for name, role, count in zip(("prefill", "decode"), (Role.PREFILL, Role.DECODE), replicas, strict=True)
        for n in range(count)
    )
    states = tuple(PoolState(name, count, count) for name, count in target.pools.items())
    fresh = Verdict(Answer.YES, "Fresh", "all series are fresh")
    return Observed(limits, states, workers, target, NOW - timedelta(hours=1), fresh, history, MODEL)


def within(seen: Observed, gpus: int) -> Observed:
    """The same under a budget."""
    return replace(seen, limits=replace(seen.limits, budget_gpus=gpus))


def lively(seen: Observed) -> Observed:
    """The same as a cluster shows it: no two windows are equal, and a start, bursts and lengths were measured."""
    target, luck = seen.target, Random(SEED)
    if target is None:
        return seen
    rates = [(w.at, (w.arrival_rate or 0.0) * luck.gauss(1, LOAD)) for w in seen.history]
    history = tuple(noisy(window(at, rate, target), luck) for at, rate in rates)
    return replace(seen, history=history, start_s=START_S)


def noisy(found: Window, luck: Random) -> Window:
    """A window whose costs, lengths and gaps vary."""
    cost, prompt, output, gaps, lengths = (luck.gauss(1, NOISE) for _ in range(5))
    return replace(
        found,
        prompt_tokens=PROMPT * prompt,
        output_tokens=OUTPUT * output,
        arrival_cv2=ARRIVAL_CV2 * gaps,
        prompt_cv2=PROMPT_CV2 * lengths,
        prefill=replace(found.prefill, busy=(found.prefill.busy or 0.0) * cost),
        decode=replace(found.decode, steps_rate=(found.decode.steps_rate or 0.0) / cost),
    )


def shared(seen: Observed, others: int) -> Observed:
    """So many decode workers are of a third pool, of another device, and the metrics tell the pools apart."""
    first, second = seen.limits.pools
    if (target := seen.target) is None:
        return seen
    pools = {**target.pools, "decode": target.decode - others, "spare": others}
    history = tuple(told_apart(w, others / target.decode) for w in seen.history)
    workers = seen.workers[: len(seen.workers) - others] + tuple(
        replace(w, name=f"spare-{n}", pool="spare") for n, w in enumerate(seen.workers[-others:])
    )
    return replace(
        seen,
        limits=replace(seen.limits, pools=(first, second, replace(second, name="spare", device=H100))),
        pools=tuple(PoolState(name, count, count) for name, count in pools.items()),
        workers=workers,
        target=replace(target, pools=pools),
        history=history,
    )


def told_apart(found: Window, share: float) -> Window:
    """The window with each pool's use; `share` of decode is the third pool's."""
    use = {"decode": part(found.decode, 1 - share), "spare": part(found.decode, share)}
    return replace(found, prefill_of={"prefill": found.prefill}, decode_of=use)


def part(use: RoleUse, share: float) -> RoleUse:
    """A share of what a role did."""
    figures = (use.busy, use.tokens_rate, use.steps_rate, use.waiting)
    return RoleUse(*(None if value is None else share * value for value in figures))


CASES = {
    "overloaded, replicas help": case(60.0, (8, 8)),
    "overloaded, one device type": case(60.0, (8, 8), decode=H100),
    "overloaded, a budget binds": within(case(60.0, (8, 8)), 96),
    "beyond what any plan carries": case(1500.0, (8, 8)),
    "flips are enough": case(60.0, (5, 40)),
    "content, far too large": case(10.0, (60, 60)),
    "content": case(60.0, (16, 20)),
    "noisy windows, overloaded": lively(case(60.0, (8, 8))),
    "noisy windows, content": lively(case(60.0, (16, 20))),
    "noisy windows, far too large": lively(case(10.0, (60, 60))),
    "noisy windows, three pools overloaded": shared(lively(case(60.0, (8, 9))), 3),
    "noisy windows, three pools content": shared(lively(case(60.0, (16, 20))), 8),
}


def timed(seen: Observed) -> tuple[float, float, Decision]:
    """(quickest, median) milliseconds of one decision, and the decision: others on the machine only ever add."""
    times = []
    for _ in range(RUNS):
        began = process_time()
        decision = decide(seen, NOW)
        times.append(1000 * (process_time() - began))
    return min(times), median(times), decision


def main() -> None:
    """Time every case."""
    rows: list[Row] = []
    for name, seen in CASES.items():
        quickest, middle, decision = timed(seen)
        print(f"{name}: {decision.action} {decision.reason}: {decision.message}")
        rows += [
            against(f"{name}: {decision.reason}", quickest, "ms", GOAL_MS, RUNS),
            against(f"{name}: median", middle, "ms", GOAL_MS, RUNS),
        ]
    write("decision", rows)


if __name__ == "__main__":
    main()
