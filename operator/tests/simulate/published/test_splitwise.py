"""Splitwise's rules on costs that a hand can add: 1 ms a prompt token, 10 ms a decode step, mixed a tenth more."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_operator.simulate.published.inputs import Arrivals
from tandem_operator.simulate.published.slowdown import Summary, slowdown
from tandem_operator.simulate.published.splitwise import Link, Shape, colocated, simulate, split


@dataclass(frozen=True)
class Flat:
    growth_s: float = 0.0  # of a step, by token of context

    def prompt_s(self, lengths, decodes, context):
        return 0.001 * (sum(lengths) + decodes) * (1.1 if decodes else 1.0)

    def step(self, decodes, context):
        return 0.010 + self.growth_s * context, self.growth_s * decodes

    def idle_step_s(self, prompt):
        return self.step(1, prompt)[0]


# 640 GiB beside no weights and 1 MiB of KV a token: 655,360 tokens.
SHAPE = Shape("toy", layers=256, hidden_size=1024, weight_bytes=0)
FAST = Link(1e30)


def arrivals(*rows):
    at, prompt, output = zip(*rows, strict=True)
    return Arrivals(np.array(at, dtype=float), np.array(prompt), np.array(output))


def answer(fleet, *rows, shape=SHAPE, link=FAST):
    got = simulate(fleet, shape, arrivals(*rows), link)
    return got.ttft.tolist(), got.e2e.tolist()


@pytest.mark.parametrize(
    ("rows", "ttft", "e2e"),
    [
        pytest.param([(0, 100, 5)], [0.1], [0.14], id="alone: 100 ms, then 4 steps of 10"),
        pytest.param([(0, 100, 1)], [0.1], [0.1], id="one token ends with the prompt"),
        pytest.param(
            # The first prompt runs to 0.1; the other two wait for its end and go together, the first decode with them:
            # (100 + 200 + 1) ms · 1.1 = 331.1 ms. Then three decode: the first has 1 step left, the others 2.
            [(0, 100, 3), (0.01, 100, 3), (0.02, 200, 3)],
            [0.1, 0.4211, 0.4111],
            [0.4411, 0.4411, 0.4311],
            id="prompts that wait are computed together, decodes ride along",
        ),
        pytest.param(
            # 2,100 tokens are above the limit of 2,048 and so go alone: the decode is preempted at the step's end,
            # 0.12, and runs its last 7 steps beside the other's from 2.22.
            [(0, 100, 10), (0.115, 2100, 8)],
            [0.1, 2.105],
            [2.29, 2.175],
            id="a prompt above the limit goes alone",
        ),
    ],
)
def test_colocated(rows, ttft, e2e):
    assert answer(colocated(Flat(), 1), *rows) == (pytest.approx(ttft), pytest.approx(e2e))


def test_the_machine_with_fewest_pending_tokens_gets_it():
    # Third request: 300 pending on the first machine, 100 on the second.
    ttft, _ = answer(colocated(Flat(), 2), (0, 300, 2), (0, 100, 2), (0.01, 50, 2))
    assert ttft == pytest.approx([0.3, 0.1, 0.09 + 0.051 * 1.1])


def test_split_pays_for_the_transfer_after_the_prompt():
    # 100 MiB over 1 GiB/s: 97.7 ms between the prompt's end and the first of 4 steps.
    ttft, e2e = answer(split(Flat(), 1, Flat(), 1), (0, 100, 5), link=Link(2**30))
    assert (ttft, e2e) == (pytest.approx([0.1]), pytest.approx([0.1 + 100 / 1024 + 0.04]))


@pytest.mark.parametrize(
    ("is_shared", "second"),
    [pytest.param(False, 0.2 + 1.0, id="private"), pytest.param(True, 1.1 + 1.0, id="shared: after the first")],
)
def test_transfers_share_a_link_only_where_told(is_shared, second):
    link = Link(100 * 2**20, is_shared)  # a prompt of 100 tokens takes a second
    _, e2e = answer(split(Flat(), 1, Flat(), 1), (0, 100, 2), (0.01, 100, 2), link=link)
    assert e2e == pytest.approx([1.11, second + 0.01 - 0.01])


def test_a_long_queue_borrows_a_decode_machine():
    # 4,096-token prompts on one prompt machine: the third finds 8,192 pending and takes the decode machine instead.
    ttft, _ = answer(split(Flat(), 1, Flat(), 1), (0, 4096, 2), (0.01, 4096, 2), (0.02, 4096, 2))
    assert ttft == pytest.approx([4.096, 8.182, 4.096])


def test_a_decode_pool_without_room_borrows_a_prompt_machine():
    # Room for 330 tokens, 130 booked by each of the first two: the third decodes where its prompt was, from 0.3 on.
    shape = Shape("small", 256, 1024, weight_bytes=640 * 2**30 - 330 * 2**20)
    rows = (0, 100, 30), (0.01, 100, 30), (0.02, 100, 30)
    _, e2e = answer(split(Flat(), 1, Flat(), 1), *rows, shape=shape, link=Link(2**30))
    assert e2e[2] == pytest.approx(0.3 - 0.02 + 0.29), "no transfer of 98 ms"


def test_a_step_that_grows_with_context_is_summed_not_stepped():
    # Steps of 10 ms + 1 ms · context, which is 100, 101, 102, 103.
    _, e2e = answer(colocated(Flat(0.001), 1), (0, 100, 5))
    assert e2e == pytest.approx([0.1 + 0.04 + 0.406])


def test_work_that_arrives_waits_for_the_end_of_a_step_that_grows():
    # The first decodes from 0.1 in steps of 110 and 111 ms; at 0.25 the second waits until 0.321.
    ttft, _ = answer(colocated(Flat(0.001), 1), (0, 100, 50), (0.25, 10, 2))
    assert ttft[1] == pytest.approx(0.321 - 0.25 + 0.011 * 1.1)


def test_what_no_machine_can_hold_is_refused():
    with pytest.raises(ValueError, match="700000 tokens does not fit"):
        answer(colocated(Flat(), 1), (0, 699_999, 1))


def test_slowdown_is_one_on_an_idle_machine():
    got = slowdown(simulate(colocated(Flat(), 1), SHAPE, arrivals((0, 100, 5))), Flat())
    assert got.ttft == pytest.approx((1, 1, 1))
    assert got.e2e == pytest.approx((1, 1, 1))
    assert got.tbt == pytest.approx((0.8, 0.8, 0.8)), "its TBT divides by the first token too"
    assert got.meets_slo


def test_the_slo_is_missed_at_its_limit():
    assert not Summary((2, 2, 2), (1, 1, 1), (1, 1, 1)).meets_slo


rows_of = st.lists(st.tuples(st.floats(0, 5), st.integers(1, 5000), st.integers(1, 50)), min_size=1, max_size=30)


@settings(max_examples=40, deadline=None)
@given(rows_of, st.booleans(), st.sampled_from([0.0, 1e-6]))
def test_every_request_ends_and_never_before_its_work(rows, is_split, growth):
    costs = Flat(growth)
    fleet = split(costs, 2, costs, 2) if is_split else colocated(costs, 3)
    got = simulate(fleet, SHAPE, arrivals(*sorted(rows)), FAST)
    assert np.isfinite(got.e2e).all()
    assert (got.ttft >= 0.001 * got.prompt - 1e-9).all()
    assert (got.e2e >= got.ttft + 0.010 * (got.output - 1) - 1e-9).all()
