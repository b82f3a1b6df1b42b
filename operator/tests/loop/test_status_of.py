"""When the status is worth writing: decisions, conditions and live numbers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tandem_operator.api import conditions as known
from tandem_operator.api.status import Condition, DecisionStatus, ObservedStatus, Status
from tandem_operator.loop.planned import Plan
from tandem_operator.loop.status import (
    condition_of,
    decision_status,
    has_moved,
    observed_status,
    predicted_status,
    refused_status,
    target_status,
)
from tandem_operator.loop.transitions import events_between
from tandem_operator.plan.facts import Action, Answer, Decision, Prediction, Target, Verdict, Window

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOW + timedelta(minutes=5)
ONE, TWO = Target({"p": 1, "d": 2}, 1, 2), Target({"p": 1, "d": 2}, 2, 1)


def recorded(action="Hold", reason="WithinTargets", target=ONE, message="old words"):
    return DecisionStatus(id="7", target=target_status(target), action=action, reason=reason, message=message, at=NOW)


def decided(action=Action.HOLD, reason="WithinTargets", target=ONE, message="new words"):
    return Decision(action, reason, message, target)


OFF_IDLE, OFF_IDLE_NOW = "off; Auto would hold (NoTraffic): 0 in 20 s", "off; Auto would hold (NoTraffic): 0 in 25 s"
OFF_MOVE = "off; Auto would move prefill 1→2, decode 2→1: TTFT p90 9,000 ms"


@pytest.mark.parametrize(
    ("old", "new", "number", "words", "at"),
    [
        pytest.param(None, decided(Action.INITIALIZE, "InitialTarget"), "1", "new words", LATER, id="the first"),
        pytest.param(recorded(), None, "7", "old words", NOW, id="not asked"),
        pytest.param(recorded(), decided(), "7", "old words", NOW, id="the same word, other numbers"),
        pytest.param(
            recorded(), decided(reason="Infeasible"), "7", "new words", NOW, id="another reason keeps the target's age"
        ),
        pytest.param(recorded(), decided(Action.FLIP, "TargetsMissed", TWO), "8", "new words", LATER, id="a move"),
        pytest.param(
            recorded("Flip", "TargetsMissed"),
            decided(reason="MoveOpen"),
            "7",
            "old words",
            NOW,
            id="a move keeps its words",
        ),
        pytest.param(recorded("Flip", "TargetsMissed"), decided(), "7", "new words", NOW, id="until it is over"),
        pytest.param(recorded(), decided(reason="WindowFilling"), "7", "new words", NOW, id="a hold has none to keep"),
        pytest.param(
            recorded("Recommend", "TargetsMissed"),
            decided(Action.RECOMMEND, "TargetsMissed"),
            "7",
            "new words",
            NOW,
            id="a recommendation",
        ),
        pytest.param(
            recorded(reason="RebalanceOff", message=OFF_IDLE),
            decided(reason="RebalanceOff", message=OFF_IDLE_NOW),
            "7",
            OFF_IDLE,
            NOW,
            id="off, and Auto would do the same",
        ),
        pytest.param(
            recorded(reason="RebalanceOff", message=OFF_IDLE),
            decided(reason="RebalanceOff", message=OFF_MOVE),
            "7",
            OFF_MOVE,
            NOW,
            id="off, and Auto would do something else",
        ),
    ],
)
def test_decision_status(old, new, number, words, at):
    found = decision_status(old, Plan(ONE, new), LATER)
    assert (found.id, found.message, found.at) == (number, words, at)


def window(**numbers):
    return Window(NOW, 60, **{"ttft_ms": 100, "arrival_rate": 5.0, **numbers})


@pytest.mark.parametrize(
    ("numbers", "age_s", "moved"),
    [
        pytest.param({}, 600, False, id="a changed time alone is no change"),
        pytest.param({"ttft_ms": 109}, 600, False, id="9 %"),
        pytest.param({"ttft_ms": 112}, 600, True, id="12 %"),
        pytest.param({"ttft_ms": 500}, 59, False, id="at most once a minute"),
        pytest.param({"ttft_ms": None}, 600, True, id="a value vanished"),
        pytest.param({"attainment": 0.9}, 600, True, id="a value appeared"),
        pytest.param({"arrival_rate": 0.0}, 600, True, id="traffic ended"),
    ],
)
def test_has_moved(numbers, age_s, moved):
    old = observed_status(window())
    assert has_moved(old, window(**numbers), NOW + timedelta(seconds=age_s)) is moved


def test_from_zero_to_zero_is_no_move():
    idle = window(arrival_rate=0.0)
    assert not has_moved(observed_status(idle), idle, LATER)
    assert has_moved(None, idle, NOW)
    assert has_moved(ObservedStatus(), idle, NOW)


def old_condition(status="True", reason="Fresh", message="old"):
    return Condition(
        type="MetricsAvailable",
        status=status,
        observed_generation=1,
        last_transition_time=NOW,
        reason=reason,
        message=message,
    )


@pytest.mark.parametrize(
    ("old", "verdict", "keep", "time", "message"),
    [
        pytest.param(None, Verdict(Answer.YES, "Fresh", "new"), True, LATER, "new", id="never set"),
        pytest.param(old_condition(), Verdict(Answer.YES, "Fresh", "new"), True, NOW, "old", id="live numbers alone"),
        pytest.param(old_condition(), Verdict(Answer.YES, "Fresh", "new"), False, NOW, "new", id="written anyway"),
        pytest.param(
            old_condition(),
            Verdict(Answer.YES, "NoTraffic", "new"),
            True,
            NOW,
            "new",
            id="another reason, no transition",
        ),
        pytest.param(old_condition(), Verdict(Answer.NO, "X", "new"), True, LATER, "new", id="a transition"),
        pytest.param(
            old_condition(reason="PodsNotReady", message="prefill 1/3"),
            Verdict(Answer.YES, "PodsNotReady", "decode 1/3"),
            True,
            NOW,
            "decode 1/3",
            id="another pool is short",
        ),
        pytest.param(
            old_condition(reason="PodsNotReady", message="prefill 1/3 after 610 s"),
            Verdict(Answer.YES, "PodsNotReady", "prefill 1/3 after 625 s"),
            True,
            NOW,
            "prefill 1/3 after 610 s",
            id="time alone",
        ),
        pytest.param(
            old_condition(reason="BudgetExhausted", message="3 GPUs"),
            Verdict(Answer.YES, "BudgetExhausted", "4 GPUs"),
            True,
            NOW,
            "4 GPUs",
            id="no figure of these changes by itself",
        ),
    ],
)
def test_condition_of(old, verdict, keep, time, message):
    found = condition_of(old, "MetricsAvailable", verdict, 3, LATER, keep=keep)
    assert (found.last_transition_time, found.message, found.observed_generation) == (time, message, 3)


def test_a_refusal_keeps_the_intent():
    old = Status(decision=recorded(), conditions=[old_condition()])
    found = refused_status(old, 4, "InvalidSpec", "spec.slo: missing", NOW)
    assert found.decision == old.decision
    assert {c.type: c.status for c in found.conditions} == {"Ready": "False", "Stalled": "True"}
    assert found.observed_generation == 4


def with_(*found, decision=None):
    parts = [
        Condition(type=t, status=s, observed_generation=1, last_transition_time=NOW, reason=r, message="m")
        for t, s, r in found
    ]
    return Status(conditions=parts, decision=decision)


@pytest.mark.parametrize(
    ("old", "new", "reasons"),
    [
        pytest.param(with_(), with_(), [], id="nothing"),
        pytest.param(with_(), with_(("Ready", "Unknown", "Progressing")), [], id="not known yet"),
        pytest.param(with_(), with_(("Ready", "True", "Serving")), ["Serving"], id="ready"),
        pytest.param(with_(("Ready", "True", "Serving")), with_(("Ready", "True", "Serving")), [], id="still ready"),
        pytest.param(with_(), with_(("Stalled", "True", "A")), ["A"], id="stalled"),
        pytest.param(with_(("Stalled", "True", "A")), with_(("Stalled", "True", "B")), ["B"], id="stalled otherwise"),
        pytest.param(
            with_(), with_(("ScalingLimited", "False", "WithinBounds")), [], id="the good answer of a bad question"
        ),
        pytest.param(
            with_(("SLOMet", "True", "WithinTargets")),
            with_(("SLOMet", "False", "TTFTAboveTarget")),
            ["TTFTAboveTarget"],
            id="missed",
        ),
        pytest.param(with_(), with_(decision=recorded()), [], id="the first target"),
        pytest.param(
            with_(decision=recorded()), with_(decision=recorded(target=TWO)), ["Rebalanced"], id="a new target"
        ),
        pytest.param(with_(decision=recorded()), with_(decision=recorded(reason="X")), [], id="a hold is no event"),
        pytest.param(
            with_(decision=recorded()), with_(decision=recorded("Recommend")), ["Recommended"], id="a recommendation"
        ),
    ],
)
def test_events_between(old, new, reasons):
    assert [event.reason for event in events_between(old, new)] == reasons


def test_the_order_of_conditions_is_the_apis():
    assert [kind.name for kind in known.CONDITIONS][:3] == ["Ready", "Reconciling", "Stalled"]


def test_what_was_decided_for_pools_is_on_record_for_half_an_hour():
    grown, back = Target({"p": 3, "d": 2}, 3, 2), Target({"p": 1, "d": 3}, 1, 3)
    first = decision_status(recorded(), Plan(grown, decided(Action.SCALE, "TargetsMissed", grown)), NOW)
    assert [(c.pool, c.workers) for c in first.changes] == [("p", 2)]
    held = decision_status(first, Plan(grown, decided(target=grown)), LATER)
    assert held.changes == first.changes, "a hold forgets nothing"
    then = decision_status(held, Plan(back, decided(Action.SCALE, "TargetsMissed", back)), LATER)
    assert [(c.pool, c.workers, c.at) for c in then.changes] == [("p", 2, NOW), ("p", -2, LATER), ("d", 1, LATER)]
    late = NOW + timedelta(minutes=31)
    last = decision_status(then, Plan(grown, decided(Action.SCALE, "TargetsMissed", grown)), late)
    assert NOW not in {c.at for c in last.changes}
    assert LATER in {c.at for c in last.changes}


@pytest.mark.parametrize(
    ("found", "wire"),
    [
        pytest.param(None, None, id="none"),
        pytest.param(Prediction(None, None, None), None, id="no load predicts nothing: no object, not an empty one"),
        pytest.param(
            Prediction(400, None, 0.5), {"ttftMilliseconds": 400, "attainmentPercent": "50.0"}, id="one diverges"
        ),
    ],
)
def test_a_prediction_in_the_status(found, wire):
    status = predicted_status(found)
    assert (status and status.to_wire()) == wire
