"""The status: no floats, whole seconds, clipped words, the same after a round trip."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from pydantic import ValidationError

from tandem_operator.api.status import (
    Condition,
    DecisionStatus,
    ObservedStatus,
    RoleCounts,
    Status,
    TargetStatus,
)

AT = datetime(2026, 3, 1, 12, 0, 0, 987_654, tzinfo=UTC)
DECISION = DecisionStatus(
    id="smollm2-3",
    target=TargetStatus(pools={"prefill": 1, "decode": 2}, roles=RoleCounts(prefill=2, decode=1)),
    action="Flip",
    reason="TTFTAboveTarget",
    message="prefill 1→2",
    at=AT,
)


def condition(**changes):
    facts = {"type": "Ready", "status": "True", "observed_generation": 1, "last_transition_time": AT}
    return Condition(**{**facts, "reason": "Serving", "message": "", **changes})


def test_wire_form():
    status = Status(observed_generation=3, decision=DECISION, ratio="2:1", conditions=[condition()])
    assert status.to_wire() == {
        "observedGeneration": 3,
        "pools": {},
        "ratio": "2:1",
        "decision": {
            "id": "smollm2-3",
            "target": {"pools": {"prefill": 1, "decode": 2}, "roles": {"prefill": 2, "decode": 1}},
            "action": "Flip",
            "reason": "TTFTAboveTarget",
            "message": "prefill 1→2",
            "alternatives": [],
            "changes": [],
            "at": "2026-03-01T12:00:00Z",
        },
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "observedGeneration": 1,
                "lastTransitionTime": "2026-03-01T12:00:00Z",
                "reason": "Serving",
                "message": "",
            }
        ],
    }


def test_what_was_written_reads_back_equal():
    status = Status(
        decision=DECISION, observed=ObservedStatus(ttft_milliseconds=812, attainment_percent="97.3", as_of=AT)
    )
    assert Status.model_validate(status.to_wire()) == status


def test_other_time_zones_become_utc():
    elsewhere = AT.astimezone(timezone(timedelta(hours=2)))
    assert condition(last_transition_time=elsewhere) == condition()


def test_condition_by_type():
    status = Status(conditions=[condition()])
    assert status.condition("Ready") == condition()
    assert status.condition("Stalled") is None


def test_long_words_are_clipped():
    found = condition(message="x" * 40_000).message
    assert len(found) == 32_768
    assert found.endswith("…")


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        pytest.param(ObservedStatus, {"attainment_percent": 97.3}, id="a float"),
        pytest.param(ObservedStatus, {"attainment_percent": "97,3"}, id="a comma"),
        pytest.param(ObservedStatus, {"ttft_milliseconds": -1}, id="negative"),
        pytest.param(ObservedStatus, {"as_of": AT.replace(tzinfo=None)}, id="no time zone"),
        pytest.param(RoleCounts, {"prefill": 1.5}, id="half a worker"),
        pytest.param(Status, {"ratio": "2/1"}, id="no ratio"),
    ],
)
def test_refused(model, fields):
    with pytest.raises(ValidationError):
        model(**fields)
