"""One budget, many resources: who may grow, who gives, and that nobody takes what is not yet given."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.plan.claims import Member, capped, caps, caps_of, claim_of, in_use
from tandem_operator.plan.facts import Answer, PoolState, Role, Target, Verdict
from tandem_operator.plan.fleet import Claim

from .examples import NOW, history, observed, pinned, pool, starving

WIDE = pinned(pools=(pool(high=4), pool("decode", Role.DECODE, 1, 4, 2)), budget_gpus=None)
BLIND = Verdict(Answer.NO, "PrometheusUnreachable", "nobody answers")


CALM = history(rps=0.5)


def member(name="a", priority=0, limits=WIDE, **changes):
    return Member(name, priority, observed(limits, **{"history": CALM, **changes}))


def new(**changes):
    return replace(observed(WIDE), target=None, pools=(PoolState("prefill", None, 0), PoolState("decode", None, 0)))


@pytest.mark.parametrize(
    ("one", "minimum", "holds"),
    [
        pytest.param(member(metrics=BLIND), 3, None, id="its load is not known: it keeps what it has"),
        pytest.param(member(limits=replace(WIDE, suspended=True)), 0, None, id="suspended: nothing"),
        pytest.param(Member("a", 0, new()), 2, 3, id="new: what it begins with"),
        pytest.param(member(history=starving()), 2, 3, id="observed: its plans, the present one among them"),
    ],
)
def test_claims(one, minimum, holds):
    found = claim_of(one, NOW)
    assert found.minimum == minimum
    assert (holds in dict(found.steps)) if holds else found.steps == ()


def test_who_misses_its_targets_asks_for_more():
    calm, hungry = claim_of(member(), NOW), claim_of(member(history=starving()), NOW)
    assert max(dict(hungry.steps)) > 3
    assert dict(calm.steps)[3] > dict(hungry.steps)[3]
    assert hungry.rate > 0


@pytest.mark.parametrize(
    ("used", "budget", "expected"),
    [
        pytest.param({"high": 4, "low": 4}, 12, {"high": 6, "low": 4}, id="what is free goes to who asks"),
        pytest.param({"high": 4, "low": 4}, 8, {"high": 4, "low": 2}, id="low gives first; high waits for it"),
        pytest.param({"high": 4, "low": 2}, 8, {"high": 6, "low": 2}, id="... and takes what was given"),
        pytest.param({"high": 8, "low": 4}, 20, {"high": 8, "low": 4}, id="nobody shrinks for nobody"),
    ],
)
def test_caps(used, budget, expected):
    claims = [
        Claim("high", 1, 2, ((4, 0.5), (6, 0.99)), wanted=0.95),
        Claim("low", 0, 2, ((4, 0.5),), wanted=0.95),
    ]
    if budget == 20:
        claims[1] = replace(claims[1], steps=((3, 0.99),))
    assert {name: cap.gpus for name, cap in caps_of(claims, used, budget).items()} == expected


@given(
    claims=st.lists(
        st.builds(
            Claim,
            name=st.sampled_from("abcdef"),
            priority=st.integers(-1, 1),
            minimum=st.integers(0, 3),
            steps=st.lists(st.tuples(st.integers(1, 9), st.sampled_from([0.3, 0.6, 0.99])), max_size=3).map(tuple),
            rate=st.sampled_from([0.0, 1.0, 5.0]),
            wanted=st.just(0.95),
        ),
        unique_by=lambda claim: claim.name,
        max_size=6,
    ),
    used=st.lists(st.integers(0, 9), min_size=6, max_size=6),
    budget=st.integers(0, 40),
)
def test_nobody_takes_what_is_in_use_elsewhere(claims, used, budget):
    have = dict(zip("abcdef", used, strict=True))
    have = {claim.name: have[claim.name] for claim in claims}
    found = caps_of(claims, have, budget)
    grown = sum(max(0, cap.gpus - max(have[c.name], c.minimum)) for c in claims for cap in [found[c.name]])
    assert grown <= max(0, budget - sum(have.values())), "growth is out of what is free"
    assert all(found[c.name].gpus >= min(have[c.name], c.minimum) for c in claims)
    if sum(have.values()) <= budget and all(c.minimum <= have[c.name] for c in claims):
        assert sum(max(have[name], cap.gpus) for name, cap in found.items()) <= budget


def test_the_whole_way_from_facts_to_a_cap():
    many = starving(rps=3.0)  # more than three workers can do, whatever their roles
    found = caps([member("hungry", history=many), member("calm")], 6, NOW)
    assert found["hungry"].gpus == 3, "six are in use"
    assert caps([member("hungry", history=many), member("calm")], 9, NOW)["hungry"].gpus > 3
    assert caps([member("hungry", 1, history=many), member("calm")], 6, NOW)["calm"].gpus == 2, "it gives one"
    assert capped(WIDE, found["hungry"]).budget_gpus == 3
    assert capped(WIDE, None) is WIDE


def test_in_use_is_what_was_decided_or_still_runs():
    seen = observed(WIDE, pools=(PoolState("prefill", 4, 4), PoolState("decode", 1, 1)))
    assert in_use(seen) == 4 + 2
    assert in_use(replace(seen, limits=replace(WIDE, suspended=True))) == 0
    assert in_use(replace(seen, leaving_gpus=3)) == 4 + 2 + 3, "pools of the former mode, until they are gone"
    assert in_use(replace(seen, target=Target({"prefill": 1, "decode": 4}, 1, 4))) == 8
