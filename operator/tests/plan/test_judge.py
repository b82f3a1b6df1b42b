from dataclasses import replace
from datetime import timedelta

import pytest

from tandem_operator.plan.facts import Answer, PoolState, Role, RoleUse, Target, Verdict
from tandem_operator.plan.judge import binding, breach, contiguous, judge_metrics, judge_scaling, judge_slo
from tests.plan.examples import NOW, SLO, history, observed, pinned, pool, starving

DOWN = Verdict(Answer.NO, "PrometheusUnreachable", "no answer within 5 s")
IDLE = {
    "arrival_rate": 0.0,
    "request_rate": 0.0,
    "ttft_ms": None,
    "tpot_ms": None,
    "attainment": None,
    "prefill": RoleUse(0.0, 0.0, None, 0.0, 0.0),
    "decode": RoleUse(0.0, 0.0, 0.0, 0.0),
}


@pytest.mark.parametrize(
    ("changes", "answer", "reason"),
    [
        pytest.param({}, Answer.YES, "Fresh", id="fresh"),
        pytest.param({"metrics": DOWN}, Answer.NO, "PrometheusUnreachable", id="the observer's word passes through"),
        pytest.param({"history": ()}, Answer.UNKNOWN, "NoSamples", id="nothing observed"),
        pytest.param({"history": history(arrival_rate=None)}, Answer.UNKNOWN, "NoSamples", id="arrivals not known"),
    ],
)
def test_judge_metrics(changes, answer, reason):
    verdict = judge_metrics(observed(**changes), NOW)
    assert (verdict.answer, verdict.reason) == (answer, reason)


def test_an_old_window_is_no_news():
    verdict = judge_metrics(observed(), NOW + timedelta(seconds=16))
    assert (verdict.answer, verdict.reason) == (Answer.UNKNOWN, "StaleSamples")


@pytest.mark.parametrize(
    ("windows", "answer", "reason"),
    [
        pytest.param(history(), Answer.YES, "WithinTargets", id="met"),
        pytest.param(history(attainment=0.5, ttft_ms=2000), Answer.NO, "TTFTAboveTarget", id="TTFT"),
        pytest.param(history(attainment=0.5, tpot_ms=200), Answer.NO, "TPOTAboveTarget", id="TPOT"),
        pytest.param(history(attainment=0.5, tpot_ms=200, ttft_ms=2000), Answer.NO, "BothAboveTargets", id="both"),
        pytest.param(history(attainment=0.88), Answer.NO, "AttainmentBelowTarget", id="each within, together not"),
        pytest.param(
            history(attainment=None, ttft_ms=1501), Answer.NO, "TTFTAboveTarget", id="no attainment: percentiles"
        ),
        pytest.param(history(attainment=None, ttft_ms=1500), Answer.YES, "WithinTargets", id="exactly on target"),
        pytest.param(history(**IDLE), Answer.UNKNOWN, "NoTraffic", id="idle is not missed and not met"),
        pytest.param(
            history(attainment=None, ttft_ms=None, request_rate=None), Answer.UNKNOWN, "NoSamples", id="no samples"
        ),
        pytest.param(starving(), Answer.NO, "ArrivalsOutrunCompletions", id="few finish, prompts pile up"),
        pytest.param(
            starving(request_rate=0.0),
            Answer.NO,
            "ArrivalsOutrunCompletions",
            id="none finishes: no TTFT sample at all",
        ),
    ],
)
def test_judge_slo(windows, answer, reason):
    verdict = judge_slo(observed(history=windows), NOW)
    assert (verdict.answer, verdict.reason) == (answer, reason)


def test_slo_is_unknown_while_metrics_are():
    verdict = judge_slo(observed(metrics=DOWN), NOW)
    assert (verdict.answer, verdict.reason) == (Answer.UNKNOWN, "PrometheusUnreachable")


def test_a_breach_counts_consecutive_windows():
    windows = history(attainment=lambda n: 0.2 if n >= 10 else 0.97, ttft_ms=lambda n: 3000 if n >= 10 else 900)
    found = breach(windows, SLO)
    assert (found.windows, found.seconds) == (4, 15)
    assert breach(windows[:10], SLO) is None


def test_contiguous_stops_at_a_gap():
    windows = history(20)
    torn = (*windows[:10], *(windows[13:]))
    assert len(contiguous(windows, 5)) == 20
    assert len(contiguous(torn, 5)) == 7


@pytest.mark.parametrize(
    ("changes", "answer", "reason"),
    [
        pytest.param({}, Answer.NO, "WithinBounds", id="content"),
        pytest.param({"target": None}, Answer.UNKNOWN, "NoTarget", id="nothing chosen"),
        pytest.param({"history": starving()}, Answer.YES, "AtMaximum", id="missed, and no pod more is allowed"),
        pytest.param(
            {"pools": (PoolState("prefill", 1, 0), PoolState("decode", 2, 2))},
            Answer.YES,
            "PodsNotReady",
            id="pods pending",
        ),
    ],
)
def test_judge_scaling(changes, answer, reason):
    verdict = judge_scaling(replace(observed(), **changes), NOW)
    assert (verdict.answer, verdict.reason) == (answer, reason)


def test_at_the_maximum_the_words_are_of_the_bounds_and_not_of_the_last_window():
    windows = starving()
    worse = (*windows[:-1], replace(windows[-1], ttft_ms=windows[-1].ttft_ms + 500))
    found = {judge_scaling(replace(observed(), history=seen), NOW).message for seen in (windows, worse)}
    assert len(found) == 1
    assert "prefill 1, decode 2" in found.pop()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({}, ["pool prefill has its maximum of 1", "pool decode has its maximum of 2"], id="both maxima"),
        pytest.param(
            {"pools": (pool(high=4), pool("decode", Role.DECODE, 2, 2, 2))},
            ["the budget is 3 GPUs", "pool decode has its maximum of 2"],
            id="the budget keeps the one, its maximum the other",
        ),
        pytest.param(
            {
                "pools": (pool(high=4), pool("decode", Role.DECODE, 2, 9, 2)),
                "budget_gpus": None,
                "budget_per_device": {"h100-sxm": 3},
            },
            ["the budget is 3 GPUs of h100-sxm"],
            id="one device's budget keeps both, said once",
        ),
    ],
)
def test_what_binds_is_named(changes, words):
    assert binding(pinned(**changes), Target({"prefill": 1, "decode": 2}, 1, 2)) == words


def test_a_breach_does_not_reach_back_over_a_gap():
    """What was missed before a pause or an outage says nothing about now."""
    windows = starving()
    torn = (*windows[:8], *windows[12:])
    assert breach(windows, SLO, 5).windows == len(windows)
    assert breach(torn, SLO, 5).windows == 2
