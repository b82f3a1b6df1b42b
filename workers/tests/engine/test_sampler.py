"""Sampling: greedy, seeded, within top-p, with the model's own logprobs."""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tandem_worker.engine import InvalidRequestError, Sampling
from tandem_worker.engine.checks import check_ids, check_sampling
from tandem_worker.engine.sampler import NO_TOKEN, Draw, pick_tokens, uniform
from tandem_worker.engine.shaping import shape_logits

LOGITS = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))


def draws(count: int, **sampling) -> list[int]:
    chosen = Sampling(max_tokens=1, **sampling)
    rows = [Draw(chosen, seed=11, index=at) for at in range(count)]
    return [one.id for one in pick_tokens(LOGITS.repeat(count, 1), rows)]


@pytest.mark.parametrize(
    ("changes", "shares"),
    [
        pytest.param({"temperature": 0.0}, (1, 0, 0, 0), id="greedy"),
        pytest.param({}, (0.5, 0.3, 0.15, 0.05), id="as the model says"),
        pytest.param({"top_p": 0.8}, (0.625, 0.375, 0, 0), id="top-p takes the smallest set that reaches it"),
        pytest.param({"top_p": 0.01}, (1, 0, 0, 0), id="at least the best"),
        pytest.param({"temperature": 0.5}, (0.6849, 0.2466, 0.0616, 0.0068), id="cooler: squared"),
        pytest.param({"top_k": 2}, (0.625, 0.375, 0, 0), id="top-k"),
        pytest.param({"top_k": 9}, (0.5, 0.3, 0.15, 0.05), id="top-k beyond the vocabulary"),
        pytest.param({"top_k": 3, "top_p": 0.8}, (0.625, 0.375, 0, 0), id="top-p within what top-k left: 0.84 of it"),
        pytest.param({"min_p": 0.25}, (10 / 19, 6 / 19, 3 / 19, 0), id="min-p: a share of the best"),
        pytest.param({"min_p": 1.0}, (1, 0, 0, 0), id="min-p leaves the best"),
        pytest.param({"logit_bias": ((0, -100.0),)}, (0, 0.6, 0.3, 0.1), id="a banned token"),
        pytest.param({"logit_bias": ((3, math.log(10)),)}, (5 / 14.5, 3 / 14.5, 1.5 / 14.5, 5 / 14.5), id="a bias"),
        pytest.param({"temperature": 0.0, "logit_bias": ((3, 9.0),)}, (0, 0, 0, 1), id="greedy after a bias"),
    ],
)
def test_shares(changes, shares):
    picked = draws(4000, **{"temperature": 1.0, **changes})
    for token, share in enumerate(shares):
        assert picked.count(token) / 4000 == pytest.approx(share, abs=0.03)
        assert share > 0 or token not in picked


@settings(deadline=None)
@given(seed=st.integers(0, 2**63), index=st.integers(0, 10**6))
def test_uniform_is_in_range_and_repeats(seed, index):
    assert 0 <= uniform(seed, index) < 1
    assert uniform(seed, index) == uniform(seed, index)


KINDS = [
    Sampling(max_tokens=9),
    Sampling(max_tokens=9, temperature=0.9, top_p=0.9),
    Sampling(max_tokens=9, temperature=1.2, top_k=40, min_p=0.01),
    Sampling(max_tokens=9, repetition_penalty=1.3, logit_bias=((5, 2.0),)),
    Sampling(max_tokens=9, temperature=0.7, frequency_penalty=1.0, presence_penalty=-0.5),
    Sampling(max_tokens=9, temperature=2.0),
]


@settings(deadline=None, max_examples=60)  # nothing here depends on speed
@given(st.lists(st.integers(0, 5), min_size=1, max_size=8))
def test_a_row_does_not_depend_on_its_batch(others):
    torch.manual_seed(0)
    table = torch.randn(6, 300)
    drawn = [Draw(KINDS[at], seed=at, index=3, tokens=[at, 7, 7, 9]) for at in others]
    alone = [pick_tokens(table[at : at + 1], [draw])[0].id for at, draw in zip(others, drawn, strict=True)]
    together = pick_tokens(table[others], drawn)
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
        ({"top_k": -1}, "top_k"),
        ({"min_p": 1.1}, "min_p"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": math.inf}, "frequency_penalty"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"min_tokens": 2}, "min_tokens"),
        ({"logit_bias": ((1, 101.0),)}, "logit_bias"),
        ({"logit_bias": tuple((at, 1.0) for at in range(301))}, "logit_bias"),
        ({"stop_ids": tuple(range(65))}, "stop ids"),
    ],
)
def test_bad_values_are_named(changes, word):
    with pytest.raises(InvalidRequestError, match=word):
        check_sampling(Sampling(**{"max_tokens": 1, **changes}))


@pytest.mark.parametrize("ids", [{"stop_ids": (4,)}, {"logit_bias": ((7, 1.0),)}])
def test_ids_of_another_vocabulary_are_refused(ids):
    with pytest.raises(InvalidRequestError, match="ids are 0 to 3"):
        check_ids(Sampling(max_tokens=1, **ids), vocab=4)


def shaped_by_hand(row: list[float], draw: Draw) -> list[float]:
    """The definitions, token by token."""
    chosen = draw.sampling
    said = draw.tokens[len(draw.tokens) - draw.index :]
    for at, value in chosen.logit_bias:
        row[at] += value
    for at in set(draw.tokens):
        row[at] = row[at] / chosen.repetition_penalty if row[at] > 0 else row[at] * chosen.repetition_penalty
    for at in set(said):
        row[at] -= chosen.frequency_penalty * said.count(at) + chosen.presence_penalty
    for at in draw.forbidden:
        row[at] = -math.inf
    return row


token = st.integers(0, 11)
draws_of_twelve = st.builds(
    lambda tokens, index, forbidden, **fields: Draw(
        Sampling(max_tokens=1, **fields), 1, min(index, len(tokens)), tokens, tuple(forbidden)
    ),
    tokens=st.lists(token, max_size=10),
    index=st.integers(0, 10),
    forbidden=st.lists(token, max_size=3),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.sampled_from([0.0, -1.5, 0.3, 2.0]),
    repetition_penalty=st.floats(0.5, 2.0),
    logit_bias=st.lists(st.tuples(token, st.floats(-100, 100)), max_size=4, unique_by=lambda one: one[0]).map(tuple),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(draws_of_twelve, min_size=1, max_size=5))
def test_shaping_is_as_defined(rows):
    logits = torch.randn(len(rows), 12, generator=torch.Generator().manual_seed(3))
    expected = torch.tensor([shaped_by_hand(row, draw) for row, draw in zip(logits.tolist(), rows, strict=True)])
    shape_logits(logits, rows)
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-5)


def left_by_hand(probabilities: list[float], chosen: Sampling) -> set[int]:
    """Ids that top-k, then top-p, then min-p leave."""
    order = sorted(range(len(probabilities)), key=lambda at: -probabilities[at])
    order = order[: chosen.top_k or None]
    whole, reached, kept = sum(probabilities[at] for at in order), 0.0, []
    for at in order:
        if reached < chosen.top_p * whole:
            kept.append(at)
        reached += probabilities[at]
    return {at for at in kept if probabilities[at] >= chosen.min_p * probabilities[order[0]]}


@settings(deadline=None, max_examples=80)
@given(
    top_k=st.integers(0, 30), top_p=st.floats(0.05, 1.0), min_p=st.floats(0, 0.9), seed=st.integers(0, 2**40),
    vocab=st.sampled_from([20, 1500]), heat=st.floats(0.2, 5.0),
)  # fmt: skip
@example(top_k=0, top_p=1.0, min_p=0.0001, seed=1, vocab=1500, heat=5.0)
def test_a_drawn_token_is_one_that_the_bounds_leave(top_k, top_p, min_p, seed, vocab, heat):
    logits = torch.randn(1, vocab, generator=torch.Generator().manual_seed(seed)) * 3
    chosen = Sampling(max_tokens=1, temperature=heat, top_k=top_k, top_p=top_p, min_p=min_p)
    left = left_by_hand(torch.softmax(logits[0].double() / heat, 0).tolist(), chosen)
    picked = pick_tokens(logits.repeat(20, 1), [Draw(chosen, seed, at) for at in range(20)])
    assert {one.id for one in picked} <= left


def test_rows_that_are_no_numbers_are_no_tokens_and_spoil_nobody():
    rows = LOGITS.repeat(4, 1)
    rows[1, 2] = math.nan
    rows[2, 0] = math.inf
    for temperature in (0.0, 1.0):
        chosen = Sampling(max_tokens=1, temperature=temperature, top_k=2, top_logprobs=2)
        picked = pick_tokens(rows, [Draw(chosen, 3, 0)] * 4)
        assert [one.id == NO_TOKEN for one in picked] == [False, True, True, False]
        assert picked[0] == picked[3]
