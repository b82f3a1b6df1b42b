import json

import pytest

from tandem_operator.plan.decide import decide
from tandem_operator.plan.record import RecordError, from_record, replay, to_record
from tests.plan.examples import NOW, observed, pinned, starving


def line(**changes):
    seen = observed(history=starving(), **changes)
    return to_record(seen, NOW, decide(seen, NOW))


def test_a_record_is_lossless_through_json():
    seen = observed(pinned(budget_per_device={"h100-sxm": 3}), history=starving())
    decision = decide(seen, NOW)
    text = json.dumps(to_record(seen, NOW, decision), allow_nan=False)
    assert from_record(json.loads(text)) == (seen, NOW, decision)


def test_replay_gives_the_very_decisions_or_says_which_differ():
    good = line()
    bent = json.loads(json.dumps(good))
    bent["decision"]["reason"] = "Whim"
    lines = [json.dumps(good), "", json.dumps(bent)]
    assert [(m.line, m.recorded.reason, m.replayed.reason) for m in replay(lines)] == [(3, "Whim", "TargetsMissed")]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(lambda r: r.update(version=9), "version is 9", id="another version"),
        pytest.param(lambda r: r.pop("now"), "now is missing", id="no time"),
        pytest.param(lambda r: r["observed"].update(surprise=1), "unknown field surprise", id="unknown field"),
        pytest.param(
            lambda r: r["observed"]["limits"].update(mode="Sometimes"), "observed.limits.mode", id="no such mode"
        ),
        pytest.param(lambda r: r["observed"]["history"][0].update(ttft_ms="slow"), "ttft_ms", id="text for a number"),
        pytest.param(lambda r: r["observed"]["metrics"].pop("reason"), "field reason is missing", id="field missing"),
    ],
)
def test_what_is_no_record_is_refused_by_name(change, words):
    record = json.loads(json.dumps(line()))
    change(record)
    with pytest.raises(RecordError, match=words):
        replay([json.dumps(record)])
