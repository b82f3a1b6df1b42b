"""DistServe's rules on constants that a hand can add; milliseconds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_operator.simulate.published.distserve import Decoder, Decoding, Engine, colocated, disaggregated
from tandem_operator.simulate.published.inputs import Arrivals

# A prefill: 7 + tokens (+ 1 + 2 + 0.0001 a token); a step: 8 + batch (+ 2 + 0.0001 a token of context).
PLAIN = Engine((7.0, 1.0, 0.0), (8.0, 0.0, 1.0), (8.0, 0.0, 1.0))


def arrivals(*rows):
    at, prompt, output = zip(*rows, strict=True)
    return Arrivals(np.array(at, dtype=float) / 1000, np.array(prompt), np.array(output))


def test_one_request():
    got = disaggregated(PLAIN, arrivals((0, 100, 4)))
    assert got.ttft == pytest.approx([110.01])
    # Four steps at a context of 100, 101, 102, 103: every output token is a step, the first one too.
    assert got.tpot == pytest.approx([11 + 0.0001 * 101.5])


def test_prompts_that_wait_go_together():
    got = disaggregated(PLAIN, arrivals((0, 100, 1), (10, 50, 1), (20, 30, 1)))
    end = 110.01 + 10 + 80.008
    assert got.ttft == pytest.approx([110.01, end - 10, end - 20])


def test_one_gpu_stops_decoding_for_a_prompt():
    # Decodes from 110.01 on; at 115 a prompt comes, which starts at the step's end, 121.02, and takes 60.005.
    got = colocated(PLAIN, arrivals((0, 100, 3), (115, 50, 1)))
    assert got.ttft == pytest.approx([110.01, 121.02 + 60.005 - 115])
    # Then a step of both at a context of 151, and the last of the first alone at 102.
    assert got.tpot[0] == pytest.approx((11.01 + 60.005 + 12.0151 + 11.0102) / 3)


def test_what_is_over_the_token_limit_waits_its_turn():
    decoder = Decoder(PLAIN)
    decoder.queue.extend([Decoding(0, 30_000, 5), Decoding(1, 30_000, 5)])
    _, ended = decoder.run(0.0, float("inf"))
    assert [(s.index, s.left) for s in decoder.queue] == [(1, 5), (0, 4)]
    assert not ended


steps = st.lists(st.tuples(st.integers(1, 400), st.integers(1, 30)), min_size=1, max_size=8)


@settings(max_examples=40, deadline=None)
@given(steps, st.floats(1, 2000))
def test_a_jump_is_as_long_as_its_steps(members, until):
    jumped, stepped = Decoder(PLAIN), Decoder(PLAIN)
    for decoder in (jumped, stepped):
        decoder.queue.extend(Decoding(i, context, left) for i, (context, left) in enumerate(members))
    end, ended = jumped.run(0.0, until)
    now, gone = 0.0, []
    while not gone and now < until - 1e-9:
        now, gone = stepped.run(now, now + 1e-9)
    assert end == pytest.approx(now)
    assert [s.index for s in ended] == [s.index for s in gone]
