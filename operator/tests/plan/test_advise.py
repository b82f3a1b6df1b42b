"""The advisor: clear-cut cases, what is impossible, and where its answer turns."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_operator.plan.advice_words import arithmetic, sureness_words, verdict_words
from tandem_operator.plan.advise import advise, answer, closest_slo, gpus_needed
from tandem_operator.plan.crossing import at_prompt, at_rate, crossings
from tandem_operator.plan.facts import Slo
from tandem_operator.plan.kinds import NoFitError, kinds_of
from tandem_operator.plan.sizing import Mode, Question, Sizer
from tandem_operator.plan.traffic import Traffic, fixed
from tests.plan.examples import H100, H200, LLAMA_70B, SMOL

LLAMA_8B = replace(LLAMA_70B, parameters=8_030_261_248, layers=32, hidden_size=4096, heads=32)
HUGE = replace(LLAMA_70B, parameters=9_000_000_000_000)
RELAXED = Slo(2000, 100, 90)


def question(isl, osl, rps, slo=RELAXED, model=LLAMA_70B, devices=(H100,), budget=64, **changes):
    traffic = Traffic(rps, rps, fixed(isl), fixed(osl))
    kinds = kinds_of(devices, model, traffic.longest_tokens)
    return Question(kinds, traffic, slo, 64, budget, **changes)


@pytest.mark.parametrize(
    ("asked", "mode"),
    [
        pytest.param(question(128, 128, 0.5), Mode.COLOCATED, id="short prompts, low traffic"),
        pytest.param(question(512, 64, 1.0, model=LLAMA_8B, budget=1), Mode.COLOCATED, id="one GPU"),
        pytest.param(question(64, 500, 40.0, devices=(H100, H200)), Mode.COLOCATED, id="hardly any prefill"),
        pytest.param(question(8000, 300, 20.0, Slo(2000, 20, 95), budget=400), Mode.DISAGGREGATED, id="strict TPOT"),
        pytest.param(
            question(8000, 300, 20.0, Slo(2000, 20, 95), devices=(H100, H200), budget=400),
            Mode.DISAGGREGATED,
            id="strict TPOT, two kinds of GPU",
        ),
    ],
)
def test_clear_cut_cases(asked, mode):
    advice = advise(asked)
    assert (advice.mode, advice.is_feasible) == (mode, True)
    assert advice.best.sure >= asked.wanted
    words = verdict_words(advice)
    assert words.startswith("Disaggregate" if mode is Mode.DISAGGREGATED else "Do not disaggregate")


def test_the_answer_is_the_cheaper_mode_and_within_the_budget():
    asked = question(3000, 150, 10.0, Slo(500, 40, 95), devices=(H100, H200), budget=64)
    advice = advise(asked)
    plans = [p for p in (advice.split, advice.shared) if p]
    assert all(p.plan.gpus <= 64 and p.sure >= 0.95 for p in plans)
    assert advice.best.usd_per_hour == min(p.usd_per_hour for p in plans) or advice.mode is Mode.COLOCATED


def test_every_worker_is_needed():
    asked = question(3000, 150, 10.0, Slo(500, 40, 95), devices=(H100, H200))
    plan = advise(asked).split.plan
    stern = Sizer(asked, 1.3)
    for index in range(2):
        groups = list(plan.groups)
        groups[index] = replace(groups[index], workers=groups[index].workers - 1)
        if groups[index].workers:
            assert stern.forecast(replace(plan, groups=tuple(groups))).attainment < asked.wanted


# --- what is impossible ---


def test_an_impossible_ttft_names_the_floor_and_the_closest_slo():
    asked = question(8000, 150, 2.0, Slo(20, 40, 95))
    advice = advise(asked)
    assert not advice.is_feasible
    words = verdict_words(advice)
    assert "No number of workers reaches TTFT 20 ms" in words
    found = closest_slo(asked)
    assert f"closest feasible SLO: TTFT {found.ttft_ms:,} ms, TPOT 40 ms at p95" in words
    assert answer(replace(asked, slo=found)) is not None
    assert answer(replace(asked, slo=replace(found, ttft_ms=round(found.ttft_ms / 1.05)))) is None


def test_a_small_budget_names_what_would_be_enough():
    asked = question(3000, 150, 20.0, Slo(500, 40, 95), budget=8)
    advice = advise(asked)
    assert not advice.is_feasible
    needed = gpus_needed(asked, 4096)
    assert f"The budget allows 8 GPUs, {needed} would meet it" in verdict_words(advice)
    assert advise(replace(asked, budget_gpus=needed)).is_feasible


def test_a_budget_below_one_worker_has_no_advice():
    assert advise(question(100, 10, 1.0, budget=1)) is None  # 70B in bf16 needs two GPUs at least


@pytest.mark.parametrize(
    ("model", "words"),
    [
        pytest.param(
            replace(LLAMA_70B, parameters=405_853_388_800), "16 × h100-sxm would hold them", id="405B on H100s"
        ),
        pytest.param(HUGE, "nor on 128;", id="no number of them"),
    ],
)
def test_a_model_that_does_not_fit_names_what_would_hold_it(model, words):
    with pytest.raises(NoFitError, match=words):
        kinds_of((H100,), model, 4000)


def test_the_smallest_kind_that_fits_is_the_first():
    assert [k.gpus for k in kinds_of((H100,), LLAMA_70B, 4000)] == [4, 8]
    assert [k.gpus for k in kinds_of((H100,), SMOL, 4000)] == [1]  # nine heads have no even share


# --- where the answer turns ---


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(question(3000, 150, 10.0, Slo(500, 40, 95), devices=(H100, H200), budget=96), id="mid"),
        pytest.param(question(500, 200, 4.0, Slo(300, 25, 95)), id="short"),
    ],
)
def test_both_sides_of_a_crossing_differ(asked):
    found = crossings(asked, 32_000)
    assert found
    for turn in found:
        move = at_rate if turn.axis == "rps" else at_prompt
        near = answer(replace(asked, traffic=move(asked.traffic, turn.near)))
        far = answer(replace(asked, traffic=move(asked.traffic, turn.far)))
        assert (near, far) == (turn.mode_near, turn.mode_far)
        assert near != far
        assert near == answer(asked)
        assert max(turn.near, turn.far) / min(turn.near, turn.far) <= 1.011


# --- properties ---

LOADS = st.tuples(st.integers(50, 16_000), st.integers(2, 800), st.floats(0.1, 60.0))
TARGETS = st.builds(Slo, st.integers(50, 5000), st.integers(8, 200), st.sampled_from([50, 90, 95, 99]))


@settings(max_examples=15, deadline=None)
@given(load=LOADS, slo=TARGETS, budget=st.integers(2, 128))
def test_more_budget_never_loses_and_never_costs_more(load, slo, budget):
    asked = question(*load, slo, budget=budget)
    less, more = advise(asked), advise(replace(asked, budget_gpus=2 * budget))
    if less is not None and less.is_feasible:
        assert more.is_feasible
        assert more.best.usd_per_hour <= less.best.usd_per_hour / 0.95 + 1e-6


@settings(max_examples=15, deadline=None)
@given(load=LOADS, slo=TARGETS)
def test_a_looser_slo_never_takes_more(load, slo):
    asked = question(*load, slo, budget=256)
    tight, loose = advise(asked), advise(replace(asked, slo=Slo(2 * slo.ttft_ms, 2 * slo.tpot_ms, slo.percentile)))
    if tight is not None and tight.is_feasible:
        assert loose.is_feasible
        assert loose.best.usd_per_hour <= tight.best.usd_per_hour / 0.95 + 1e-6


@settings(max_examples=15, deadline=None)
@given(load=LOADS, slo=TARGETS, budget=st.integers(4, 128))
def test_every_answer_has_words(load, slo, budget):
    advice = advise(question(*load, slo, devices=(H100, H200), budget=budget))
    assert verdict_words(advice)
    assert sureness_words(advice)
    for outlook in (advice.best, advice.other):
        if outlook is not None:
            assert all(text for _, text in arithmetic(advice.question, outlook.plan))
