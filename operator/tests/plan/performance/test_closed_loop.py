"""Users in a closed loop, on unit costs that make the arithmetic plain."""

from dataclasses import replace
from itertools import cycle, repeat

import pytest

from tandem_operator.plan.performance.closed_loop import play
from tandem_operator.plan.performance.correction import Point, correct
from tandem_operator.plan.performance.costs import Costs, Roof
from tandem_operator.plan.performance.disaggregated import HANDOVER_S, Closed, Side, latency, matching
from tandem_operator.plan.performance.engine import Engine

# 1 ms a prompt token, 10 ms a pass of decode, nothing else.
COSTS = Costs(Roof(1e-3, 0.0), Roof(0.0, 0.01), None, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1)
ENGINE = Engine("plain", 1000, True, True, 0, 0, 0, 0, 1.0, of_free=False)


def ms(users, requests, prompt, output, engine=ENGINE, room=1e9):
    found = play(COSTS, engine, room, users, requests, repeat((prompt, output)))
    return (round(found.ttft_s * 1000, 3), round(found.tpot_s * 1000, 3))


def test_one_user_waits_for_nobody():
    # 100 tokens x 1 ms and the output projection; each step computes one token as well.
    assert ms(1, 3, 100, 11) == (110, 10 + 1)


def test_prompts_that_come_together_share_a_pass_within_its_budget():
    assert ms(2, 2, 100, 2)[0] == 210
    # A budget of 100: beside the first one's step 99 of the second's tokens fit, and one is left.
    assert ms(2, 2, 100, 2, replace(ENGINE, chunk_tokens=100))[0] == pytest.approx((110 + 110 + 110 + 11) / 2)


def test_a_prompt_is_split_where_the_engine_splits():
    split, whole = (ms(2, 2, 100, 2, replace(ENGINE, chunk_tokens=150, splits=s))[0] for s in (True, False))
    assert split == pytest.approx((160 + 160 + 61) / 2)
    assert whole == pytest.approx((110 + 110 + 111) / 2)


def test_decode_waits_for_prompts_where_the_engine_does_not_mix():
    # The first one waits for the second's prompt before both take ten steps of 12 ms.
    apart = ms(2, 2, 100, 11, replace(ENGINE, chunk_tokens=100, mixes=False))
    assert apart == (110 + 55, pytest.approx(((110 + 120) / 10 + 12) / 2))


def test_memory_makes_users_wait():
    wide, narrow = ms(4, 40, 100, 11)[0], ms(4, 40, 100, 11, room=250)[0]
    assert narrow > wide + 100


def test_an_engine_that_looks_seldom_answers_late():
    outputs = [(10, 101), (10, 150), (10, 230)]
    often, seldom = (play(COSTS, replace(ENGINE, poll_steps=n), 1e9, 4, 40, cycle(outputs)).ttft_s for n in (1, 30))
    # A look every 30 steps of 14 ms: 15 steps later on average, less where a prompt's pass is followed by one.
    assert 0.05 < seldom - often < 30 * 0.014


def test_disaggregated_without_load():
    load = Closed(users=1, rounds=10, prompt=100, output=101, transfer_s=0.05)
    found = latency(Side(COSTS, 1, 1), Side(COSTS, 1, 100), ENGINE, load)
    assert found.ttft_s == pytest.approx(0.11 + 0.05 + HANDOVER_S, abs=0.02)
    assert found.tpot_s == pytest.approx(0.011)


def test_too_little_prefill_queues_there():
    load = Closed(users=50, rounds=10, prompt=1000, output=101, transfer_s=0.0)
    one, many = (latency(Side(COSTS, n, 1), Side(COSTS, 1, 100), ENGINE, load) for n in (1, 20))
    assert one.ttft_s > 10 * many.ttft_s
    assert one.tpot_s < many.tpot_s


def test_matching():
    load = Closed(users=10, rounds=10, prompt=1000, output=101, transfer_s=0.0)
    # Ten users decode at 20 ms a step: 10 / (101 x 0.02) = 4.95 prompts/s of 1.01 s each.
    assert matching(Side(COSTS, 1, 1), Side(COSTS, 1, 100), ENGINE, load) == 5


def test_correction_learns_a_level_and_trusts_the_shape():
    points = [Point((n, 1000.0), 1.3 * n, float(n)) for n in (1, 2, 4, 8, 16)]
    found = correct(points)
    assert found.apply((4, 1000.0), 4.0) == pytest.approx(1.3 * 4, rel=0.03)
    assert found.slopes[1] == pytest.approx(0)


def test_correction_is_not_led_by_one_outlier():
    points = [Point((4.0, 1000.0), 1.1, 1.0)] * 4 + [Point((4.0, 1000.0), 50.0, 1.0)]
    assert correct(points).apply((4.0, 1000.0), 1.0) == pytest.approx(1.1, rel=0.1)
