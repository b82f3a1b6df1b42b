"""The demo's loads: sized on what was measured, and only on what two rounds agree about."""

import pytest

from e2e.demo.calibrate import CHAT_OUTPUT, Chats, Prompts, size_chats, size_prompts
from e2e.demo.measure import NotSteadyError, steady


@pytest.mark.parametrize("seconds", [0.05, 0.3, 3.0])
def test_each_load_starves_one_worker_and_suits_two(seconds):
    prompts = size_prompts(Prompts(tokens=222, service_s=seconds, ttft_s=1.1 * seconds))
    assert prompts.rate * seconds > 1.2, "one prefill worker falls behind"
    assert prompts.rate / 2 * seconds < 0.8, "each of two has time to spare"
    assert prompts.target_ms > 1.1 * seconds * 1000, "an unloaded worker meets the target"
    chats = size_chats(Chats(seats=16, tpot_s=seconds))
    answers_a_second = 16 / ((CHAT_OUTPUT - 1) * seconds)
    assert chats.rate / answers_a_second > 1.2, "one decode worker's seats do not suffice"
    assert chats.rate / 2 / answers_a_second < 0.8, "those of two do"
    assert chats.target_ms > seconds * 1000, "a full batch without a wait for a seat meets the target"


@pytest.mark.parametrize(
    ("rounds", "believed"),
    [
        pytest.param([1.0, 1.1], 1.1, id="two that agree: the second"),
        pytest.param([1.0, 2.0, 2.1], 2.1, id="a slow minute at first"),
        pytest.param([1.0, 2.0, 1.0, 1.1], 1.1, id="the last two"),
    ],
)
def test_two_rounds_must_agree(rounds, believed):
    assert steady(lambda at: rounds[at - 1], lambda one: one) == believed


def test_a_machine_that_never_settles_is_not_measured():
    with pytest.raises(NotSteadyError, match="1,000, 2,000, 1,000, 2,000 ms"):
        steady(lambda at: 1.0 + (at - 1) % 2, lambda one: one)
