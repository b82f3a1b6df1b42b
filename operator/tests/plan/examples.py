"""Facts that the planner's tests start from: three slow workers, whatever the data sheet says of them."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

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
    Target,
    Verdict,
    Window,
    WorkerState,
)

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
H100 = Device("h100-sxm", 989e12, 80e9, 3.35e12, 50e9, 3.0)
H200 = Device("h200-sxm", 989e12, 141e9, 4.8e12, 50e9, 3.8)
CPU = Device("cpu", 5e10, 4e9, 1e10, 1.25e9, 0.05)
SMOL = ModelShape(134_515_008, 30, 576, 9, 3, 64, 49_152, 2)
LLAMA_70B = ModelShape(70_553_706_496, 80, 8192, 64, 8, 128, 128_256, 2)
FRESH = Verdict(Answer.YES, "Fresh", "all series are fresh")
SLO = Slo(1500, 100, 90)


def pool(name="prefill", role=Role.PREFILL, low=1, high=4, initial=1, device=H100, gpus=1):
    return PoolLimits(name, role, device, gpus, low, high, initial)


def pinned(**changes):
    """Three workers, no more and no less: only roles can move."""
    pools = (pool(high=1), pool("decode", Role.DECODE, 2, 2, 2))
    base = Limits(SLO, RebalanceMode.AUTO, pools, budget_gpus=3, role_flips=True, interval_s=5)
    return replace(base, **changes)


def workers(target, ready=True):
    """Pods that serve exactly as the target says, own role first."""
    made = []
    flipped = target.prefill - target.pools.get("prefill", 0)
    for name, role, other in (("prefill", Role.PREFILL, Role.DECODE), ("decode", Role.DECODE, Role.PREFILL)):
        away = max(-flipped, 0) if role is Role.PREFILL else max(flipped, 0)
        for n in range(target.pools.get(name, 0)):
            made.append(  # noqa: PERF401
                WorkerState(f"{name}-{n}", name, other if n < away else role, ready, 1.0, 600.0)
            )
    return tuple(made)


def prompt_window(at, target, rps=2.5, isl=512, alpha=0.001, **changes):
    """Windows of a prompt-heavy load on workers that take 1 ms a prompt token and 40 ms a step."""
    busy = min(rps * isl * alpha, target.prefill)
    done = busy / (isl * alpha)
    window = Window(
        at,
        30,
        rps,
        done,
        float(isl),
        8.0,
        900,
        60,
        0.97,
        RoleUse(busy, busy / alpha, None, 0.0, 0.0),
        RoleUse(done * 7 * 0.04, done * 7, done * 7, 0.0, None),
        target.prefill,
        target.decode,
    )
    return replace(window, **changes)


def history(count=14, target=None, **changes):
    """Windows every 5 s, the newest at NOW; a value may be a function of the window's number."""
    target = target or Target({"prefill": 1, "decode": 2}, 1, 2)

    def value(v, n):
        return v(n) if callable(v) else v

    return tuple(
        prompt_window(
            NOW - timedelta(seconds=5 * (count - 1 - n)), target, **{k: value(v, n) for k, v in changes.items()}
        )
        for n in range(count)
    )


def observed(limits=None, target=None, **changes):
    """A settled resource under its target, metrics fresh."""
    limits = limits or pinned()
    target = target or Target({"prefill": 1, "decode": 2}, 1, 2)
    pools = tuple(PoolState(name, count, count) for name, count in target.pools.items())
    base = Observed(
        limits, pools, workers(target), target, NOW - timedelta(hours=1), FRESH, history(target=target), SMOL
    )
    return replace(base, **changes)


def starving(**changes):
    """One prefill worker at 128 %: TTFT misses, prompts pile up."""
    return history(
        ttft_ms=4200, attainment=0.2, prefill=lambda n: RoleUse(1.0, 1000.0, None, 2.0 * n, 1000.0 * n), **changes
    )
