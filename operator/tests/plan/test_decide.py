from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_operator.plan.candidates import gpus_of, is_legal
from tandem_operator.plan.decide import decide
from tandem_operator.plan.facts import (
    Action,
    Answer,
    PoolState,
    RebalanceMode,
    Role,
    RoleUse,
    Slo,
    Steadiness,
    Target,
    Verdict,
    WorkerState,
)
from tests.plan.examples import CPU, H100, NOW, history, observed, pinned, pool, prompt_window, starving, workers
from tests.plan.test_judge import DOWN, IDLE

ONE_TWO, TWO_ONE = Target({"prefill": 1, "decode": 2}, 1, 2), Target({"prefill": 1, "decode": 2}, 2, 1)
COLOCATED = Target({"prefill": 1, "decode": 2}, 1, 0)
NONE_YET = (PoolState("prefill", None, 0), PoolState("decode", None, 0))
WIDE = pinned(pools=(pool(), pool("decode", Role.DECODE, 1, 4, 2)), budget_gpus=None)


def more(role, count):
    """Workers of another pool."""
    return tuple(WorkerState(f"more-{n}", "more", role, True, 1.0, 600.0) for n in range(count))


def hungry(**changes):
    return observed(history=starving(), **changes)


@pytest.mark.parametrize(
    ("seen", "action", "reason", "target"),
    [
        pytest.param(
            replace(observed(), target=None, pools=NONE_YET, workers=()),
            Action.INITIALIZE,
            "InitialTarget",
            ONE_TWO,
            id="first",
        ),
        pytest.param(
            replace(observed(), workers=workers(TWO_ONE), target=None),
            Action.ADOPT,
            "StatusLost",
            TWO_ONE,
            id="status lost: roles kept",
        ),
        pytest.param(
            replace(observed(), workers=(), target=None),
            Action.ADOPT,
            "StatusLost",
            ONE_TWO,
            id="status lost, pods gone",
        ),
        pytest.param(
            hungry(limits=pinned(min_decode=3)),
            Action.HOLD,
            "ImpossibleBounds",
            ONE_TWO,
            id="bounds contradict each other",
        ),
        pytest.param(
            observed(limits=replace(WIDE, pools=(pool(low=2), pool("decode", Role.DECODE, 1, 4))), metrics=DOWN),
            Action.SCALE,
            "BoundsChanged",
            Target({"prefill": 2, "decode": 2}, 2, 2),
            id="edited bounds are obeyed, even blind",
        ),
        pytest.param(
            observed(limits=replace(WIDE, pools=(pool(low=2), pool("decode", Role.DECODE, 1, 4))), target=TWO_ONE),
            Action.SCALE,
            "BoundsChanged",
            Target({"prefill": 2, "decode": 2}, 3, 1),
            id="an edit of a pool keeps the flipped worker",
        ),
        pytest.param(
            observed(
                limits=replace(WIDE, pools=(pool(), pool("decode", Role.DECODE, 1, 4, 2))),
                target=Target({"prefill": 1, "decode": 2, "more": 2}, 3, 2),
                workers=(*workers(ONE_TWO), *more(Role.PREFILL, 2)),
            ),
            Action.SCALE,
            "BoundsChanged",
            ONE_TWO,
            id="with a pool its workers go, whatever they do",
        ),
        pytest.param(hungry(), Action.FLIP, "TargetsMissed", TWO_ONE, id="prefill starves: flip"),
        pytest.param(hungry(metrics=DOWN), Action.HOLD, "PrometheusUnreachable", ONE_TWO, id="blind"),
        pytest.param(hungry(model=None), Action.HOLD, "ModelUnknown", ONE_TWO, id="no shape"),
        pytest.param(hungry(decided_at=NOW - timedelta(seconds=20)), Action.HOLD, "Cooldown", ONE_TWO, id="cooldown"),
        pytest.param(
            hungry(workers=workers(ONE_TWO, ready=False)), Action.HOLD, "MoveOpen", ONE_TWO, id="pods not ready"
        ),
        pytest.param(hungry(workers=workers(TWO_ONE)), Action.HOLD, "MoveOpen", ONE_TWO, id="a flip is open"),
        pytest.param(
            observed(history=starving(decode_workers=lambda n: 1 if n == 12 else 2)),
            Action.HOLD,
            "Cooldown",
            ONE_TWO,
            id="another plan served within the window",
        ),
        pytest.param(observed(history=starving()[-3:]), Action.HOLD, "WindowFilling", ONE_TWO, id="after a restart"),
        pytest.param(
            observed(history=history(decode=RoleUse(None, None, None), attainment=0.1, ttft_ms=4000)),
            Action.HOLD,
            "NotCalibrated",
            ONE_TWO,
            id="a role that was never seen at work",
        ),
        pytest.param(observed(history=history(rps=1.0)), Action.HOLD, "WithinTargets", ONE_TWO, id="content"),
        pytest.param(observed(history=history(**IDLE)), Action.HOLD, "NoTraffic", ONE_TWO, id="idle"),
        pytest.param(
            observed(history=(*history(13, rps=1.0), prompt_window(NOW, ONE_TWO, attainment=0.2, ttft_ms=3000))),
            Action.HOLD,
            "BreachNotConfirmed",
            ONE_TWO,
            id="one missed window is chance",
        ),
        pytest.param(
            hungry(limits=pinned(role_flips=False)),
            Action.HOLD,
            "Infeasible",
            ONE_TWO,
            id="pinned and no flips: nothing is allowed",
        ),
        pytest.param(
            observed(history=starving(rps=2.2), limits=replace(WIDE, role_flips=False)),
            Action.SCALE,
            "TargetsMissed",
            Target({"prefill": 2, "decode": 2}, 2, 2),
            id="no flips: a replica",
        ),
        pytest.param(
            observed(history=starving(rps=2.2), limits=WIDE),
            Action.FLIP,
            "TargetsMissed",
            TWO_ONE,
            id="a flip before a replica",
        ),
        pytest.param(
            hungry(limits=pinned(pools=(pool(high=1), pool("decode", Role.BOTH, 2, 2, 2))), target=COLOCATED),
            Action.HOLD,
            "ColocatedPools",
            COLOCATED,
            id="workers that do both have no ratio",
        ),
        pytest.param(
            observed(history=starving(rps=3.0), limits=replace(WIDE, role_flips=False, budget_gpus=4)),
            Action.SCALE,
            "TargetsMissed",
            Target({"prefill": 3, "decode": 1}, 3, 1),
            id="no flips: a replica, and the other pool gives one",
        ),
        pytest.param(
            hungry(limits=pinned(mode=RebalanceMode.RECOMMEND)),
            Action.RECOMMEND,
            "TargetsMissed",
            ONE_TWO,
            id="recommend",
        ),
        pytest.param(hungry(limits=pinned(mode=RebalanceMode.OFF)), Action.HOLD, "RebalanceOff", ONE_TWO, id="off"),
    ],
)
def test_decide(seen, action, reason, target):
    decision = decide(seen, NOW)
    assert (decision.action, decision.reason, decision.target) == (action, reason, target), decision.message


def test_the_sentence_has_numbers_that_can_be_checked():
    message = decide(hungry(), NOW).message
    for part in (
        "prefill 1→2, decode 2→1",
        "for 14 windows",
        "prefill is 128 % busy at 2.50 req/s × 512 tokens",
        "drains in",
    ):
        assert part in message


def test_off_and_recommend_say_what_auto_would_do():
    for mode in (RebalanceMode.OFF, RebalanceMode.RECOMMEND):
        assert "prefill 1→2, decode 2→1" in decide(hungry(limits=pinned(mode=mode)), NOW).message


def test_alternatives_name_the_choice_and_why_not_the_others():
    decision = decide(hungry(), NOW)
    assert [(a.target, a.rejected == "") for a in decision.alternatives] == [(TWO_ONE, True), (ONE_TWO, False)]


def test_ttft_that_misses_because_decode_is_full_moves_decode():
    """Prompts wait for tickets, prefill workers have time: the short side is decode."""
    windows = history(
        target=TWO_ONE,
        rps=1.5,
        isl=64,
        ttft_ms=4000,
        tpot_ms=80,
        attainment=0.3,
        output_tokens=100.0,
        request_rate=1.0,
        prefill=lambda n: RoleUse(0.1, 96.0, None, 2.0 * n, 128.0 * n),
        decode=RoleUse(1.0, 100.0, 12.5),
    )
    decision = decide(observed(target=TWO_ONE, history=windows), NOW)
    assert (decision.action, decision.target) == (Action.FLIP, ONE_TWO), decision.message
    assert "decode is" in decision.message


@pytest.mark.parametrize(
    ("changes", "down_window_s", "shrinks"),
    [
        pytest.param({"rps": 0.4}, 60, True, id="confirmed slack"),
        pytest.param({"rps": 0.4}, 600, False, id="the history does not reach that far"),
        pytest.param({"rps": lambda n: 1.6 if n == 12 else 0.4}, 60, False, id="one busy window is enough to stay"),
        pytest.param(
            {
                "rps": 0.4,
                "ttft_ms": lambda n: None if n == 12 else 900,
                "attainment": lambda n: None if n == 12 else 0.97,
            },
            60,
            False,
            id="an unknown window is not slack",
        ),
        pytest.param(IDLE, 60, True, id="idle, confirmed"),
    ],
)
def test_scale_down_only_after_confirmed_slack(changes, down_window_s, shrinks):
    target = Target({"prefill": 2, "decode": 3}, 2, 3)
    limits = pinned(
        pools=(pool(), pool("decode", Role.DECODE, 1, 4)),
        budget_gpus=None,
        role_flips=False,
        steadiness=Steadiness(down_window_s=down_window_s),
    )
    decision = decide(observed(limits, target, history=history(20, target, **changes)), NOW)
    assert (decision.target.pools["prefill"] < 2) is shrinks, decision.message
    if shrinks:
        assert (decision.action, decision.reason) == (Action.SCALE, "SlackConfirmed")


def rising(n):
    """To 0.8 requests per second in 40 windows: one prefill worker of 512 ms carries it, and not what follows."""
    return 0.1 + 0.018 * n


GROWING = replace(WIDE, role_flips=False)
PATIENT = replace(GROWING, slo=Slo(4000, 100, 90))


@pytest.mark.parametrize(
    ("seen", "action", "reason"),
    [
        pytest.param(
            observed(GROWING, history=history(40, rps=rising), start_s=60.0),
            Action.SCALE,
            "LoadRising",
            id="it rises",
        ),
        pytest.param(
            observed(GROWING, history=history(40, rps=rising)), Action.SCALE, "LoadRising", id="no start seen: a guess"
        ),
        pytest.param(
            observed(GROWING, history=history(rps=1.0), start_s=60.0), Action.HOLD, "WithinTargets", id="it is steady"
        ),
        pytest.param(
            observed(PATIENT, history=starving(count=40, rps=lambda n: 3.1 - 0.041 * n), start_s=60.0),
            Action.HOLD,
            "Recovering",
            id="missed, but over before a replica would serve",
        ),
    ],
)
def test_replicas_are_for_the_load_that_they_will_meet(seen, action, reason):
    decision = decide(seen, NOW)
    assert (decision.action, decision.reason) == (action, reason), decision.message
    if reason == "LoadRising":
        assert "in 60 s, by forecast" in decision.message
        assert decision.target.pools["prefill"] > 1


def test_no_traffic_predicts_nothing():
    decision = decide(observed(history=history(**IDLE)), NOW)
    predicted = decision.predicted
    assert (predicted.ttft_ms, predicted.tpot_ms, predicted.attainment) == (None, None, None)


def test_beyond_capacity_the_answer_does_not_change_with_the_noise():
    """Both sides of a heavy overload: whatever the lengths' noise, the same plan is wanted in every window."""
    answers = set()
    for noise in (0.9, 0.95, 1.0, 1.05, 1.1):
        windows = starving(rps=6.0 * noise, output_tokens=8.0 / noise)
        decision = decide(observed(history=windows, limits=pinned(mode=RebalanceMode.OFF)), NOW)
        answers.add("Auto would move prefill 1→2, decode 2→1" in decision.message)
    assert answers == {True}


# --- properties ---


@st.composite
def facts(draw):
    """Any history, any figures, known or not; a settled resource or not."""
    unknown = st.none()
    rates = st.sampled_from([0.0, 0.3, 1.0, 2.5, 6.0])
    flips = draw(st.booleans())
    device = draw(st.sampled_from((H100, CPU)))
    pools = (pool(high=4, device=device), pool("decode", Role.DECODE, 1, 4, device=device))
    counts = {"prefill": draw(st.integers(1, 4)), "decode": draw(st.integers(1, 4))}
    total = sum(counts.values())
    limits = pinned(
        pools=pools,
        budget_gpus=draw(unknown | st.integers(total, 8)),
        role_flips=flips,
        mode=draw(st.sampled_from(RebalanceMode)),
        steadiness=Steadiness(down_window_s=60),
    )
    prefill = draw(st.integers(1, total - 1)) if flips else counts["prefill"]
    target = Target(counts, prefill, total - prefill)
    changes = {
        "rps": draw(rates),
        "isl": draw(st.sampled_from([16, 512, 4000])),
        "output_tokens": draw(unknown | st.sampled_from([1.0, 8.0, 200.0])),
        "attainment": draw(unknown | st.floats(0, 1)),
        "ttft_ms": draw(unknown | st.integers(1, 100_000)),
        "tpot_ms": draw(unknown | st.integers(1, 1000)),
    }
    if draw(st.booleans()):
        waiting = draw(st.floats(0, 50))
        changes["prefill"] = lambda n: RoleUse(1.0, 1000.0, None, waiting * n, waiting * n * 100)
    return observed(limits, target, history=history(draw(st.integers(1, 20)), target, **changes))


@settings(deadline=None, max_examples=120)
@given(facts())
def test_decisions_are_deterministic_and_within_every_bound(seen):
    decision = decide(seen, NOW)
    assert decision == decide(seen, NOW)
    assert is_legal(seen.limits, decision.target)
    assert seen.limits.budget_gpus is None or gpus_of(seen.limits, decision.target.pools) <= seen.limits.budget_gpus
    if decision.action in {Action.HOLD, Action.RECOMMEND}:
        assert decision.target == seen.target
    assert decision.reason.isalnum()
    assert decision.message


@settings(deadline=None, max_examples=60)
@given(facts(), st.sampled_from([Answer.NO, Answer.UNKNOWN]))
def test_unknown_metrics_never_move(seen, answer):
    blind = replace(seen, metrics=Verdict(answer, "PrometheusUnreachable", "no answer"))
    stale = NOW + timedelta(minutes=5)
    for decision in (decide(blind, NOW), decide(seen, stale)):
        assert decision.target == seen.target
        assert decision.action is Action.HOLD


@settings(deadline=None, max_examples=60)
@given(facts())
def test_a_missed_target_never_shrinks(seen):
    missed = replace(
        seen, history=tuple(replace(w, attainment=0.1, ttft_ms=9000, arrival_rate=2.5) for w in seen.history)
    )
    decision = decide(missed, NOW)
    assert gpus_of(seen.limits, decision.target.pools) >= gpus_of(seen.limits, seen.target.pools)


@settings(deadline=None, max_examples=60)
@given(facts())
def test_a_lost_status_is_adopted_as_it_was(seen):
    """Crash and resume: the children alone give the target back, and nothing moves."""
    target = seen.target
    decision = decide(replace(seen, target=None, decided_at=None, workers=workers(target)), NOW)
    assert decision.action is Action.ADOPT
    assert decision.target == target
