"""Mode Auto: which mode is chosen, when it changes, and what keeps it; what is not known never changes it."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_operator.plan.candidates import is_legal
from tandem_operator.plan.facts import Answer, Limits, RebalanceMode, Role, Slo, Target, Verdict
from tandem_operator.plan.modes import MOST_CHANGES, ModeCase, choose_mode
from tandem_operator.plan.sizing import Mode
from tests.plan.examples import FRESH, H100, H200, LLAMA_70B, NOW, history, observed, pool

SPAN_S = 60
SPLIT = (
    pool(high=8, gpus=4, device=H100),
    pool("decode", Role.DECODE, 1, 8, 1, H200, 4),
)
SHARED = (pool("both", Role.BOTH, 1, 16, 2, H200, 4),)
TARGETS = {Mode.DISAGGREGATED: Target({"prefill": 1, "decode": 1}, 1, 1), Mode.COLOCATED: Target({"both": 2}, 0, 0)}
STRICT, RELAXED = Slo(2000, 20, 95), Slo(2000, 100, 90)
# Long prompts under a strict TPOT are what a split is for; short prompts and little traffic are not.
LONG = {"prompt_tokens": 8000.0, "output_tokens": 300.0, "arrival_rate": 2.0, "request_rate": 2.0}
SHORT = {"prompt_tokens": 200.0, "output_tokens": 100.0, "arrival_rate": 0.5, "request_rate": 0.5}


def case_of(mode, traffic, slo=RELAXED, *, rebalance=RebalanceMode.AUTO, budget=None, **changes):
    pools = SPLIT if mode is Mode.DISAGGREGATED else SHARED
    limits = Limits(slo, rebalance, pools, budget_gpus=budget, interval_s=5, chunk_tokens=512)
    limits = replace(limits, steadiness=replace(limits.steadiness, down_window_s=SPAN_S))
    windows = history(30, target=TARGETS[Mode.DISAGGREGATED], cached_share=0.0, **traffic)
    seen = replace(observed(limits, TARGETS[mode], history=windows, model=LLAMA_70B), limits=limits, metrics=FRESH)
    fields = {name: changes.pop(name) for name in ("changes", "leaving") if name in changes}
    return ModeCase(replace(seen, **changes), mode, SPLIT + SHARED, **fields)


def test_a_split_comes_where_it_is_worth_it_and_goes_where_it_is_not():
    """Also: whoever was changed stays, so that it does not swing."""
    for slo, traffic, best in ((STRICT, LONG, Mode.DISAGGREGATED), (RELAXED, SHORT, Mode.COLOCATED)):
        for present in Mode:
            found = choose_mode(case_of(present, traffic, slo), NOW)
            assert (found.mode, found.verdict.reason) == (best, "Advised"), found.verdict.message
            assert (found.target is None) == (present is best)
            assert f"{best} at up to" in found.verdict.message


def late(case):
    return replace(case, observed=replace(case.observed, history=case.observed.history[-4:]))


def gap(case):
    old = [replace(w, at=w.at - timedelta(minutes=9)) for w in case.observed.history[:-3]]
    return replace(case, observed=replace(case.observed, history=(*old, *case.observed.history[-3:])))


def windows(**changes):
    def change(case):
        return replace(
            case,
            observed=replace(case.observed, history=tuple(replace(w, **changes) for w in case.observed.history)),
        )

    return change


def seen(**changes):
    return lambda case: replace(case, observed=replace(case.observed, **changes))


@pytest.mark.parametrize(
    ("unknown", "words"),
    [
        pytest.param(seen(metrics=Verdict(Answer.NO, "PrometheusUnreachable", "no answer")), "no answer", id="metrics"),
        pytest.param(seen(history=()), "no window", id="no window"),
        pytest.param(late, "cover 20 s", id="too few windows"),
        pytest.param(gap, "cover 15 s", id="a gap"),
        pytest.param(windows(cached_share=None), "prefix reuse", id="prefix reuse"),
        pytest.param(windows(prompt_tokens=None), "lengths", id="lengths"),
        pytest.param(windows(arrival_rate=0.0, request_rate=0.0), "no request", id="no traffic"),
        pytest.param(seen(model=None), "model", id="the model"),
    ],
)
def test_what_is_not_known_changes_nothing(unknown, words):
    for present, slo, traffic in ((Mode.COLOCATED, STRICT, LONG), (Mode.DISAGGREGATED, RELAXED, SHORT)):
        found = choose_mode(unknown(case_of(present, traffic, slo)), NOW)
        assert (found.mode, found.target) == (present, None)
        assert (found.verdict.answer, found.verdict.reason) == (Answer.UNKNOWN, "Unobserved")
        assert words in found.verdict.message


@pytest.mark.parametrize("changes", [{"leaving": True}, {"target": None}], ids=["a change is under way", "no target"])
def test_nothing_is_said(changes):
    assert choose_mode(case_of(Mode.COLOCATED, LONG, STRICT, **changes), NOW) is None


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        pytest.param({"changes": (NOW - timedelta(seconds=5 * SPAN_S),)}, "ChangesSpent", id="a moment ago"),
        pytest.param(
            {"changes": tuple(NOW - timedelta(hours=n) for n in range(MOST_CHANGES, 0, -1))},
            "ChangesSpent",
            id="too often in a day",
        ),
        pytest.param({"changes": (NOW - timedelta(seconds=7 * SPAN_S),)}, "Advised", id="long ago"),
        pytest.param({"budget": 11}, "NoRoom", id="no room for both"),
        pytest.param({"rebalance": RebalanceMode.RECOMMEND}, "Recommended", id="recommend"),
        pytest.param({"rebalance": RebalanceMode.OFF}, "Recommended", id="off"),
    ],
)
def test_what_keeps_a_mode_that_is_not_advised(how, reason):
    found = choose_mode(case_of(Mode.DISAGGREGATED, SHORT, **how), NOW)
    assert found.verdict.reason == reason, found.verdict.message
    assert found.mode is (Mode.COLOCATED if reason == "Advised" else Mode.DISAGGREGATED)


def test_a_burst_is_no_reason():
    """The first half of the span says the other mode: nothing changes yet."""
    case = case_of(Mode.COLOCATED, LONG, STRICT)
    early = tuple(replace(w, prompt_tokens=100.0, arrival_rate=0.1, request_rate=0.1) for w in case.observed.history)
    mixed = (*early[:-5], *case.observed.history[-5:])
    found = choose_mode(replace(case, observed=replace(case.observed, history=mixed)), NOW)
    assert (found.mode, found.verdict.reason) == (Mode.COLOCATED, "NotClear"), found.verdict.message


def test_a_load_beyond_both_modes_keeps_what_is():
    crowd = {**LONG, "arrival_rate": 5000.0, "request_rate": 1.0}
    for present in Mode:
        found = choose_mode(case_of(present, crowd, STRICT), NOW)
        assert (found.mode, found.verdict.reason) == (present, "NoModeReaches")


rates = st.floats(0.01, 20)
tokens = st.floats(1, 16_000)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(Mode), rates, tokens, st.floats(1, 1500), st.floats(0, 1), st.sampled_from([STRICT, RELAXED]))
def test_whatever_is_chosen_is_allowed_and_stays(mode, rate, prompt, output, cached, slo):
    """A change has a legal target within the budget beside what runs, and is not taken back on the same figures."""
    traffic = {"arrival_rate": rate, "request_rate": rate, "prompt_tokens": prompt, "output_tokens": output}
    case = case_of(mode, traffic, slo, budget=96)
    case = windows(cached_share=cached)(case)
    found = choose_mode(case, NOW)
    assert choose_mode(case, NOW) == found, "the same facts, the same answer"
    if found.mode is mode:
        assert found.target is None
        return
    assert is_legal(replace(case.observed.limits, pools=case.pools_of(found.mode)), found.target)
    after = replace(
        case,
        mode=found.mode,
        observed=replace(
            case.observed, target=found.target, limits=replace(case.observed.limits, pools=case.pools_of(found.mode))
        ),
    )
    assert choose_mode(after, NOW).mode is found.mode
