"""Sampling: greedy, seeded, within top-p, with the model's own logprobs."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_worker.engine import InvalidRequestError, Sampling
from tandem_worker.engine.sampler import Draw, check_sampling, pick_tokens, uniform

LOGITS = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))


def draws(count: int, **sampling: float) -> list[int]:
    chosen = Sampling(max_tokens=1, **sampling)
    rows = [Draw(chosen, seed=11, index=at) for at in range(count)]
    return [one.id for one in pick_tokens(LOGITS.repeat(count, 1), rows)]


@pytest.mark.parametrize(
    ("temperature", "top_p", "shares"),
    [
        pytest.param(0.0, 1.0, (1, 0, 0, 0), id="greedy"),
        pytest.param(1.0, 1.0, (0.5, 0.3, 0.15, 0.05), id="as the model says"),
        pytest.param(1.0, 0.8, (0.625, 0.375, 0, 0), id="top-p takes the smallest set that reaches it"),
        pytest.param(1.0, 0.01, (1, 0, 0, 0), id="at least the best"),
        pytest.param(0.5, 1.0, (0.6849, 0.2466, 0.0616, 0.0068), id="cooler: squared"),
    ],
)
def test_shares(temperature, top_p, shares):
    picked = draws(4000, temperature=temperature, top_p=top_p)
    for token, share in enumerate(shares):
        assert picked.count(token) / 4000 == pytest.approx(share, abs=0.03)
        assert share > 0 or token not in picked


@settings(deadline=None)
@given(seed=st.integers(0, 2**63), index=st.integers(0, 10**6))
def test_uniform_is_in_range_and_repeats(seed, index):
    assert 0 <= uniform(seed, index) < 1
    assert uniform(seed, index) == uniform(seed, index)


@settings(deadline=None, max_examples=30)  # nothing here depends on speed
@given(st.lists(st.integers(0, 5), min_size=1, max_size=8))
def test_a_row_does_not_depend_on_its_batch(others):
    torch.manual_seed(0)
    table = torch.randn(6, 300)
    sampling = Sampling(max_tokens=1, temperature=0.9, top_p=0.9)
    alone = [pick_tokens(table[at : at + 1], [Draw(sampling, at, 3)])[0].id for at in others]
    together = pick_tokens(table[others], [Draw(sampling, at, 3) for at in others])
    assert [one.id for one in together] == alone


def test_top_p_beyond_the_first_candidates_sorts_everything():
    flat = torch.zeros(1, 5000)
    ids = {
        pick_tokens(flat, [Draw(Sampling(max_tokens=1, temperature=1.0, top_p=0.99), 5, at)])[0].id for at in range(300)
    }
    assert len(ids) > 200


def test_logprobs_are_the_models_own():
    sampling = Sampling(max_tokens=1, temperature=0.3, top_logprobs=2)
    (one,) = pick_tokens(LOGITS.unsqueeze(0) + 7, [Draw(sampling, 1, 0)])
    assert one.logprob == pytest.approx(float(LOGITS[one.id]), abs=1e-5)
    assert [token for token, _ in one.top] == [0, 1]
    assert one.top[0][1] == pytest.approx(math.log(0.5), abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"stop_ids": tuple(range(65))}, "stop ids"),
    ],
)
def test_bad_values_are_named(changes, word):
    with pytest.raises(InvalidRequestError, match=word):
        check_sampling(Sampling(**{"max_tokens": 1, **changes}))
