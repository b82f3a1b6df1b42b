"""How many colocated workers: up in a confirmed breach, down after a calm window; what is not known moves nothing."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_operator.plan.candidates import is_legal
from tandem_operator.plan.decide import decide
from tandem_operator.plan.facts import (
    Action,
    Answer,
    Limits,
    PoolState,
    RebalanceMode,
    Role,
    Slo,
    Steadiness,
    Target,
    Verdict,
    WorkerState,
)
from tandem_operator.plan.modes import traffic_of
from tandem_operator.plan.shared import Case, measured, needed, tpot_ms
from tandem_operator.plan.sizing import Sizer
from tests.plan.examples import CPU, FRESH, H100, H200, LLAMA_70B, NOW, SMOL, history, observed, pool

SPAN_S = 60
BOTH = pool("both", Role.BOTH, 1, 8, 2, H200, 4)
LIMITS = Limits(
    Slo(2000, 100, 90), RebalanceMode.AUTO, (BOTH,), interval_s=5, steadiness=Steadiness(10, SPAN_S), chunk_tokens=512
)
LOAD = {"prompt_tokens": 1000.0, "output_tokens": 200.0, "cached_share": 0.0}
WELL = {"ttft_ms": 500, "tpot_ms": 30, "attainment": 0.99}
MISSED = {"ttft_ms": 4000, "tpot_ms": 90, "attainment": 0.3}


def of_size(count, *, limits=LIMITS, rate=4.0, ready=None, model=LLAMA_70B, windows=None, **changes):
    """A settled resource with so many colocated workers."""
    target = Target({"both": count}, 0, 0)
    serving = count if ready is None else ready
    workers = tuple(WorkerState(f"both-{n}", "both", Role.BOTH, n < serving, 1.0, 600.0) for n in range(count))
    figures = {**LOAD, **WELL, "arrival_rate": rate, "request_rate": rate, **(windows or {})}
    seen = observed(limits, target, history=history(30, target=target, **figures), model=model)
    states = (PoolState("both", count, serving),)
    return replace(seen, workers=workers, pools=states, metrics=FRESH, **changes)


def needed_for(rate, factor=1.0, limits=LIMITS):
    seen = of_size(1, limits=limits, rate=rate)
    case = Case(seen, NOW, LLAMA_70B, 1)
    return needed(Sizer(case.question(traffic_of(seen.history)), factor))


def test_the_model_wants_more_workers_for_more_requests():
    counts = [needed_for(rate) for rate in (1.0, 8.0, 24.0, 48.0)]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def test_a_confirmed_breach_brings_what_the_forecast_asks_for_at_once():
    """What is measured is of the requests that finish: fewer than arrive."""
    found = decide(of_size(1, rate=24.0, windows={**MISSED, "request_rate": 6.0}), NOW)
    assert (found.action, found.reason) == (Action.SCALE, "TargetsMissed"), found.message
    assert found.target.pools["both"] >= max(needed_for(24.0), 2)
    assert found.predicted is not None
    assert "both 1 → " in found.message
    assert "sized for up to 24.00 requests/s" in found.message


def test_a_breach_that_the_forecast_does_not_see_brings_one_worker():
    """The data sheet says that one would do; what is measured says that it does not."""
    found = decide(of_size(2, rate=0.5, windows={**MISSED, "tpot_ms": None}), NOW)
    assert found.target.pools == {"both": 3}


def calm_of(count, rate=0.5, **changes):
    return of_size(count, rate=rate, **changes)


@pytest.mark.parametrize(
    ("seen", "action", "reason", "count"),
    [
        pytest.param(calm_of(4), Action.SCALE, "SlackConfirmed", 3, id="far too many: one at a time"),
        pytest.param(
            calm_of(4, rate=0.0, windows={"ttft_ms": None, "tpot_ms": None, "attainment": None, "request_rate": 0.0}),
            Action.SCALE,
            "SlackConfirmed",
            3,
            id="no request at all: towards the minimum",
        ),
        pytest.param(calm_of(1), Action.HOLD, "WithinTargets", 1, id="the minimum"),
        pytest.param(
            replace(calm_of(4), history=calm_of(4).history[-6:]),
            Action.HOLD,
            "WithinTargets",
            4,
            id="calm for too short",
        ),
        pytest.param(
            of_size(2, windows={k: (lambda n, v=v, w=WELL[k]: v if n == 29 else w) for k, v in MISSED.items()}),
            Action.HOLD,
            "BreachNotConfirmed",
            2,
            id="one missed window is chance",
        ),
        pytest.param(of_size(8, rate=24.0, windows=MISSED), Action.HOLD, "Infeasible", 8, id="the maximum"),
        pytest.param(
            of_size(2, limits=replace(LIMITS, budget_gpus=8), windows=MISSED), Action.HOLD, "Infeasible", 2, id="budget"
        ),
        pytest.param(
            of_size(3, ready=2, windows=MISSED, decided_at=NOW - timedelta(minutes=1)),
            Action.HOLD,
            "MoveOpen",
            3,
            id="not all serve yet",
        ),
        pytest.param(
            of_size(3, windows=MISSED, decided_at=NOW - timedelta(seconds=5)), Action.HOLD, "Cooldown", 3, id="young"
        ),
        pytest.param(of_size(3, model=None, windows=MISSED), Action.HOLD, "ModelUnknown", 3, id="an unknown model"),
        pytest.param(
            replace(calm_of(4), metrics=Verdict(Answer.UNKNOWN, "PrometheusUnreachable", "no answer")),
            Action.HOLD,
            "PrometheusUnreachable",
            4,
            id="unknown metrics never shrink",
        ),
        pytest.param(
            of_size(1, limits=replace(LIMITS, mode=RebalanceMode.RECOMMEND), rate=24.0, windows=MISSED),
            Action.RECOMMEND,
            "TargetsMissed",
            1,
            id="recommend",
        ),
        pytest.param(
            of_size(1, limits=replace(LIMITS, mode=RebalanceMode.OFF), rate=24.0, windows=MISSED),
            Action.HOLD,
            "RebalanceOff",
            1,
            id="off",
        ),
    ],
)
def test_decide(seen, action, reason, count):
    found = decide(seen, NOW)
    assert (found.action, found.reason, found.target.pools) == (action, reason, {"both": count}), found.message
    assert is_legal(seen.limits, found.target)


def test_pools_of_other_hardware_are_left_alone():
    pools = (BOTH, pool("more", Role.BOTH, 1, 8, 1, H100, 4))
    seen = of_size(2, limits=replace(LIMITS, pools=pools), windows=MISSED)
    found = decide(replace(seen, target=Target({"both": 2, "more": 1}, 0, 0)), NOW)
    assert (found.action, found.reason) == (Action.HOLD, "ColocatedPools")


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_costs_are_what_makes_the_forecast_agree_with_the_measured_tpot(factor):
    seen = of_size(2)
    case = Case(seen, NOW, LLAMA_70B, 2)
    told = tpot_ms(Sizer(case.question(traffic_of(seen.history)), factor), 2)
    own = tuple(replace(window, tpot_ms=round(told)) for window in seen.history)
    found = measured(replace(case, seen=replace(seen, history=own)))
    assert found == pytest.approx(factor, rel=0.1)


def test_workers_slower_than_their_data_sheet_are_not_given_back():
    slow = of_size(2, rate=4.0, windows={"tpot_ms": 98})
    assert decide(of_size(2, rate=4.0), NOW).action is Action.SCALE
    assert decide(slow, NOW).action is Action.HOLD


@settings(max_examples=60)
@given(
    st.integers(1, 8),
    st.floats(0.0, 60.0),
    st.sampled_from([WELL, MISSED]),
    st.integers(8, 40),
    st.sampled_from([(H200, 4, LLAMA_70B), (CPU, 1, SMOL)]),
)
def test_never_out_of_bounds_and_never_the_wrong_way(count, rate, figures, budget, hardware):
    device, gpus, model = hardware
    own = replace(BOTH, device=device, gpus=gpus)
    limits = replace(LIMITS, pools=(own,), budget_gpus=max(budget, count * gpus))
    seen = of_size(count, limits=limits, rate=rate, windows=figures, model=model)
    found = decide(seen, NOW)
    assert is_legal(limits, found.target)
    assert found == decide(seen, NOW)
    assert found.target.pools["both"] >= count if figures is MISSED else found.target.pools["both"] <= count
    assert found.target.pools["both"] >= count - limits.steadiness.down_pods
    assert found.target.pools["both"] <= count + limits.steadiness.up_pods
