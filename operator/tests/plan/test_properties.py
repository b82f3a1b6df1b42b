"""What must hold of every decision, whatever the sizes are."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_operator.plan.decide import decide
from tandem_operator.plan.desk import Desk
from tandem_operator.plan.facts import Limits, RebalanceMode, Role, Slo, Target
from tandem_operator.plan.predict import (
    BEYOND_MS,
    Load,
    PromptCost,
    StepCost,
    batch_of,
    first_side,
    queue_of,
    steps_side,
)
from tandem_operator.plan.queueing import length_atoms
from tandem_operator.plan.search import Bar, Region, Search
from tests.plan.examples import H100, H200, NOW, SMOL, observed, pinned, pool, starving
from tests.plan.test_search import FAST, MODEL, SLOW, limits_of, whole

ROUNDING = 0.015  # the closest plan is chosen by whole per cents


@st.composite
def questions(draw):
    """Limits of one device type, a load, and the present plan."""
    device = draw(st.sampled_from((SLOW, FAST)))
    limits = limits_of((draw(st.integers(2, 24)), draw(st.integers(2, 24))), (device, device))
    load = Load(
        draw(st.floats(0.5, 40)),
        512.0,
        512.0,
        draw(st.floats(2, 200)),
        0.0,
        draw(st.none() | st.floats(0.5, 4)),
        draw(st.none() | st.floats(0.1, 2)),
    )
    return replace(limits, role_flips=draw(st.booleans())), load, Target({"prefill": 1, "decode": 1}, 1, 1)


def best_sure(limits, load, now):
    desk = Desk(limits, SMOL, load, MODEL, limits.slo)
    return Search(desk, now, 64).closest(whole(limits)).rating.sure


@settings(deadline=None, max_examples=60)
@given(questions(), st.integers(2, 30), st.integers(1, 12))
def test_more_budget_never_predicts_worse_attainment(question, budget, more):
    limits, load, now = question
    less, enough = (best_sure(replace(limits, budget_gpus=b), load, now) for b in (budget, budget + more))
    assert enough >= less - ROUNDING


@settings(deadline=None, max_examples=60)
@given(questions(), st.floats(0.4, 1), st.floats(0.4, 1))
def test_a_tighter_slo_never_frees_gpus(question, ttft, tpot):
    limits, load, now = question
    slo = limits.slo
    tight = Slo(round(slo.ttft_ms * ttft), round(slo.tpot_ms * tpot), slo.percentile)
    costs = []
    for asked in (slo, tight):
        desk = Desk(limits, SMOL, load, MODEL, asked)
        found = Search(desk, now, 64).cheapest(whole(limits), Bar(sure=0.9))
        costs.append(float("inf") if found is None else found.cost)
    assert costs[1] >= costs[0] - 1e-9


@settings(deadline=None, max_examples=40)
@given(questions(), st.integers(2, 6))
def test_equal_pools_may_change_places(question, most):
    """Two decode pools of one device: their order in the resource changes neither price nor roles nor forecast."""
    limits, load, _ = question
    first, device = limits.pools[0], limits.pools[0].device
    pair = [pool(name, Role.DECODE, 1, most, device=device) for name in ("b", "c")]
    now = Target({first.name: 1, "b": 1, "c": 1}, 1, 2)
    found = []
    for pools in ((first, *pair), (first, *reversed(pair))):
        here = replace(limits, pools=pools)
        desk = Desk(here, SMOL, load, MODEL, limits.slo)
        got = Search(desk, now, 8).cheapest(whole(here), Bar(sure=0.9))
        found.append(got and (got.cost, got.prefill, sum(got.counts), got.change, got.rating))
    assert found[0] == found[1]


@given(
    st.floats(0.1, 10),
    st.floats(0.1, 0.95),
    st.integers(1, 16),
    st.none() | st.floats(0.3, 4),
    st.sampled_from([50, 90, 99]),
)
def test_units_all_times_longer_by_a_factor(k, use, workers, cv2, percentile):
    """Costs, targets and gaps between arrivals k times as long: the same attainment, latencies k times as long."""

    def sides(k):
        slo = Slo(round(2_000_000 * k), round(60_000 * k), percentile)
        load = Load(use * workers / k, 100.0, 100.0, 50.0, 0.0, cv2, cv2)
        prompts = queue_of([(workers, PromptCost(1.0 * k, 0.2 * k, 0.01 * k))], load)
        load = load._replace(arrival_rate=use * workers / (0.02 * k * 49))
        steps = batch_of([(workers, StepCost(0.03 * k, 0.01 * k, 1e9))], load)
        return first_side([(1.0, prompts, length_atoms(cv2))], 1.0, slo), steps_side([(1.0, steps)], 1.0, slo)

    for plain, scaled in zip(sides(1.0), sides(k), strict=True):
        assert scaled.utilisation == pytest.approx(plain.utilisation)
        # "Unbounded" is said beyond ten minutes, whatever the unit: a longer scale may cross that, in one of the two.
        if plain.latency_ms is None:
            assert scaled.latency_ms is None or scaled.latency_ms > 0.999 * k * BEYOND_MS
        elif scaled.latency_ms is None:
            assert k * plain.latency_ms > 0.999 * BEYOND_MS
        else:
            assert scaled.latency_ms == pytest.approx(k * plain.latency_ms, rel=1e-3)
            assert scaled.within == pytest.approx(plain.within, abs=1e-3)


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 12), st.integers(0, 12))
def test_a_decision_with_more_budget_promises_no_less(budget, more):
    pools = (pool(high=6), pool("decode", Role.DECODE, 1, 6, 2))
    promised = []
    for gpus in (max(budget, 3), max(budget, 3) + more):
        limits = pinned(pools=pools, budget_gpus=gpus)
        decision = decide(observed(limits, history=starving(rps=5.0)), NOW)
        promised.append(decision.predicted.attainment or 0.0)
    assert promised[1] >= promised[0] - 0.05  # a flip in seconds may be preferred to more replicas in minutes


def test_a_dearer_device_is_left_out_where_the_cheaper_will_do():
    """Two decode pools: H200 at 3.8 and H100 at 3.0 dollars; a load that both would carry goes to the cheaper."""
    pools = (
        pool(low=1, high=8),
        pool("h200", Role.DECODE, 0, 8, 0, device=H200),
        pool("h100", Role.DECODE, 0, 8, 1, device=H100),
    )
    limits = Limits(Slo(1500, 40, 90), RebalanceMode.AUTO, pools)
    now = Target({"prefill": 1, "h200": 0, "h100": 1}, 1, 1)
    desk = Desk(limits, SMOL, Load(20.0, 512.0, 512.0, 100.0), MODEL, limits.slo)
    found = Search(desk, now, 0).cheapest(Region((1, 0, 0), (8, 8, 8)), Bar(sure=0.9))
    assert found.counts[1] == 0
    assert found.counts[2] >= 1
