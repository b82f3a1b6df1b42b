import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.plan.fleet import Claim, share

CURVE = ((2, 0.3), (4, 0.7), (6, 0.9), (8, 0.96), (12, 0.99))


def claim(name="a", priority=0, minimum=2, steps=CURVE, **changes):
    return Claim(name, priority, minimum, steps, **changes)


@pytest.mark.parametrize(
    ("claims", "budget", "granted"),
    [
        pytest.param([claim()], 20, {"a": 12}, id="alone: as much as helps"),
        pytest.param([claim(wanted=0.95)], 20, {"a": 8}, id="no more than its SLO asks for"),
        pytest.param([claim("a"), claim("b")], 8, {"a": 4, "b": 4}, id="equal claims, equal shares"),
        pytest.param([claim("a", rate=10.0), claim("b")], 10, {"a": 8, "b": 2}, id="where more requests are served"),
        pytest.param([claim("a"), claim("b", priority=1)], 10, {"a": 2, "b": 8}, id="priority first, minima hold"),
        pytest.param([claim("a", minimum=6), claim("b", 1, 6)], 8, {"a": 2, "b": 6}, id="minima by priority"),
        pytest.param([claim(steps=((8, 0.9),), minimum=1)], 6, {"a": 1}, id="never between two plans"),
        pytest.param([claim(steps=(), minimum=3)], 6, {"a": 3}, id="nothing known: its minimum"),
        pytest.param([claim(steps=((4, 0.1), (8, 0.9)), minimum=0)], 8, {"a": 8}, id="a slow start is jumped over"),
        pytest.param([], 4, {}, id="nobody"),
    ],
)
def test_share(claims, budget, granted):
    assert {name: g.gpus for name, g in share(claims, budget).items()} == granted


def test_words_say_what_more_would_take():
    found = share([claim("a", wanted=0.95), claim("b", wanted=0.95)], 13)
    assert found["a"].why == "6 GPUs: predicted to miss 95 %; the next plan takes 8, and 1 are left of the budget"
    other = [claim("a", wanted=0.95, steps=((2, 0.5), (6, 0.91), (8, 0.97))), claim("b", wanted=0.95)]
    assert share(other, 13)["a"].why == found["a"].why, "figures of the last look are not in it"
    assert share([claim(wanted=0.95)], 8)["a"].why == "8 GPUs: predicted to reach 95 %"


@pytest.mark.parametrize(("claims", "budget"), [([claim(), claim()], 4), ([claim()], -1), ([claim(minimum=-1)], 4)])
def test_what_cannot_be_shared_is_refused(claims, budget):
    with pytest.raises(ValueError, match="claim" if len(claims) > 1 else "at least 0"):
        share(claims, budget)


@st.composite
def fleets(draw):
    names = draw(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=5, unique=True))
    claims = []
    for name in names:
        sizes = draw(st.lists(st.integers(1, 16), max_size=5, unique=True).map(sorted))
        levels = draw(st.lists(st.floats(0, 1), min_size=len(sizes), max_size=len(sizes)).map(sorted))
        steps = tuple(zip(sizes, levels, strict=True))
        claims.append(
            Claim(
                name, draw(st.integers(0, 2)), draw(st.integers(0, 6)), steps, draw(st.sampled_from([1.0, 5.0])), 0.95
            )
        )
    return claims, draw(st.integers(0, 40))


@given(fleets(), st.randoms(use_true_random=False))
def test_never_over_budget_minima_hold_and_order_is_nothing(fleet, rng):
    claims, budget = fleet
    found = share(claims, budget)
    assert sum(g.gpus for g in found.values()) <= budget
    if sum(c.minimum for c in claims) <= budget:
        assert all(found[c.name].gpus >= c.minimum for c in claims)
    mixed = list(claims)
    rng.shuffle(mixed)
    assert share(mixed, budget) == found


@given(fleets())
def test_a_higher_priority_never_gets_less_than_alone_beside_the_others_minima(fleet):
    claims, budget = fleet
    top = max(claims, key=lambda c: (c.priority, c.name))
    others = [c for c in claims if c is not top]
    if any(c.priority == top.priority for c in others) or sum(c.minimum for c in claims) > budget:
        return
    alone = share([top], budget - sum(c.minimum for c in others))
    assert share(claims, budget)[top.name].gpus >= alone[top.name].gpus


@given(fleets(), st.integers(1, 6))
def test_more_budget_never_attains_less_for_one_alone(fleet, more):
    claims, budget = fleet
    for c in claims:
        before, after = share([c], budget)[c.name], share([c], budget + more)[c.name]
        assert (after.attainment or 0.0) >= (before.attainment or 0.0)


@given(st.integers(0, 30), st.integers(2, 4))
def test_equal_claims_differ_by_one_raise_at_most(budget, count):
    claims = [claim(name, minimum=0) for name in "abcd"[:count]]
    granted = [g.gpus for g in share(claims, budget).values()]
    assert max(granted) - min(granted) <= 4  # the widest raise of the curve
