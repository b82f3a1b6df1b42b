"""`rebalance.behavior` as autoscaling/v2 counts: what is left to a decision, by policies and what was done before."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.api.spec_rebalance import Behavior, ScalingRules
from tandem_operator.plan.behavior import allowance, paced
from tandem_operator.plan.facts import Change, Role
from tandem_operator.plan.study import reach

from .examples import pinned, pool

LIMITS = pinned(pools=(pool(high=9), pool("decode", Role.DECODE, 1, 9, 2)))
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def policy(value, kind="Pods", period=None):
    return {"type": kind, "value": value, "periodSeconds": period}


def moved(*pairs):
    """(seconds ago, workers)"""
    return [Change(NOW - timedelta(seconds=ago), "prefill", workers) for ago, workers in pairs]


@pytest.mark.parametrize(
    ("select", "policies", "size", "changes", "expected"),
    [
        pytest.param(None, [], 10, [], 7, id="no policy: the default"),
        pytest.param("Disabled", [policy(4)], 10, [], 0, id="disabled"),
        pytest.param("Disabled", [], 10, [], 0, id="disabled, without a policy"),
        pytest.param(None, [policy(4)], 10, moved((1, 4)), 4, id="without a period each decision is for itself"),
        pytest.param(None, [policy(4, period=60)], 10, moved((59, 3)), 1, id="the rest of the period"),
        pytest.param(None, [policy(4, period=60)], 10, moved((60, 3)), 4, id="the period is over"),
        pytest.param(None, [policy(4, period=60)], 10, moved((1, 9)), 0, id="never below nothing"),
        pytest.param(None, [policy(25, "Percent")], 10, [], 3, id="a share, rounded up"),
        pytest.param(None, [policy(50, "Percent", 60)], 15, moved((1, 5)), 0, id="half of ten: spent"),
        pytest.param(None, [policy(100, "Percent", 60)], 15, moved((1, 5)), 5, id="... and half spent"),
        pytest.param(None, [policy(50, "Percent", 60)], 8, moved((1, -2)), 3, id="half of ten, two gone"),
        pytest.param(None, [policy(2), policy(50, "Percent")], 10, [], 5, id="the default is the one that allows most"),
        pytest.param("Max", [policy(2), policy(50, "Percent")], 2, [], 2, id="Max"),
        pytest.param("Min", [policy(2), policy(50, "Percent")], 10, [], 2, id="Min"),
    ],
)
def test_what_is_left(select, policies, size, changes, expected):
    rules = ScalingRules.model_validate({"selectPolicy": select, "policies": policies})
    assert allowance(rules, size, changes, NOW, 7) == expected


def bounds(behavior, sizes, changes=()):
    found = paced(LIMITS, Behavior.model_validate(behavior), sizes, changes, NOW)
    return reach(found, [sizes[pool.name] for pool in found.pools])


def test_each_pool_and_direction_has_its_own():
    """An up-move of one pool spends nothing of its way down, nor of the other pool's."""
    names = [pool.name for pool in LIMITS.pools]
    sizes = dict.fromkeys(names, 2)
    behavior = {way: {"policies": [policy(1, period=60)]} for way in ("scaleUp", "scaleDown")}
    free_low, free_high = bounds(behavior, sizes)
    low, high = bounds(behavior, sizes, [Change(NOW, names[0], 1)])
    assert (low, high[1:]) == (free_low, free_high[1:])
    assert high[0] == free_high[0] - 1 == 2


def test_disabled_both_ways_leaves_the_replicas_alone():
    sizes = {pool.name: 2 for pool in LIMITS.pools}
    found = bounds({way: {"selectPolicy": "Disabled"} for way in ("scaleUp", "scaleDown")}, sizes)
    assert found == ((2, 2), (2, 2))


@given(
    value=st.integers(1, 1000),
    kind=st.sampled_from(["Pods", "Percent"]),
    period=st.integers(1, 1800),
    size=st.integers(0, 1000),
    steps=st.lists(st.tuples(st.integers(0, 4000), st.integers(1, 50)), max_size=8),
)
def test_no_period_sees_more_than_its_policy(value, kind, period, size, steps):
    """Whatever was done, doing all that is left never passes what HPA's rule allows from the period's start."""
    rules = ScalingRules.model_validate({"policies": [policy(value, kind, period)]})
    changes = moved(*steps)
    within = sum(workers for ago, workers in steps if ago < period)
    left = allowance(rules, size + within, changes, NOW, 0)
    most = value if kind == "Pods" else -(-size * value // 100)
    assert left == max(0, most - within)
