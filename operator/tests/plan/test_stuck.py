"""A move whose pods never become ready holds until a deadline; then what serves decides."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_operator.plan.candidates import is_legal
from tandem_operator.plan.decide import decide
from tandem_operator.plan.facts import Action, PoolState, Role, RoleUse, Target
from tandem_operator.plan.stuck import DEADLINE_S, as_served, deadline_s
from tests.plan.examples import NOW, history, observed, pinned, pool, workers

LATE = NOW - timedelta(seconds=DEADLINE_S + 1)
WIDE = pinned(pools=(pool(high=4), pool("decode", Role.DECODE, 1, 4, 2)), budget_gpus=None)
FIXED = pinned(pools=(pool(high=1), pool("decode", Role.DECODE, 3, 3, 3)), budget_gpus=4)


def stuck(limits, target, served, decided_at=LATE, ready=lambda w: True, **changes):
    """`served` (prefill, decode) of the target's workers serve; the windows are of those."""
    pods = []
    left = {Role.PREFILL: served[0], Role.DECODE: served[1]}
    for worker in workers(target):
        is_ready = left[worker.role] > 0
        left[worker.role] -= is_ready
        pods.append(replace(worker, ready=is_ready))
    view = Target(target.pools, *served)
    windows = changes.pop("windows", None) or history(
        target=view,
        ttft_ms=4200,
        attainment=0.2,
        prefill=lambda n: RoleUse(float(served[0]), 1000.0 * served[0], None, 2.0 * n, 1000.0 * n),
    )
    pools = tuple(PoolState(name, n, sum(p.ready for p in pods if p.pool == name)) for name, n in target.pools.items())
    base = observed(limits, target, history=windows, workers=tuple(pods), decided_at=decided_at)
    return replace(base, pools=pools, **changes)


FOUR = Target({"prefill": 1, "decode": 3}, 1, 3)


@pytest.mark.parametrize(
    ("seen", "action", "reason"),
    [
        pytest.param(
            stuck(FIXED, FOUR, (1, 2), NOW - timedelta(seconds=600)), Action.HOLD, "MoveOpen", id="not yet the deadline"
        ),
        pytest.param(stuck(FIXED, FOUR, (1, 2)), Action.FLIP, "MoveStuck", id="what serves is flipped"),
        pytest.param(
            stuck(FIXED, FOUR, (1, 2), windows=history(target=Target(FOUR.pools, 1, 2), rps=1.0)),
            Action.HOLD,
            "MoveStuck",
            id="what serves is enough",
        ),
        pytest.param(stuck(FIXED, FOUR, (0, 0)), Action.HOLD, "MoveOpen", id="nothing serves: nothing to decide by"),
    ],
)
def test_a_stuck_move(seen, action, reason):
    decision = decide(seen, NOW)
    assert (decision.action, decision.reason) == (action, reason), decision.message
    if reason == "MoveStuck":
        assert "prefill 1 of 1, decode 2 of 3" in decision.message


def test_a_flip_passes_over_the_pod_that_does_not_serve():
    """One decode pod is dead. It flips first, so that two must flip for one living worker to change its role."""
    decision = decide(stuck(FIXED, FOUR, (1, 2)), NOW)
    assert decision.target == Target({"prefill": 1, "decode": 3}, 3, 1)


def test_a_long_interval_has_a_long_deadline():
    assert deadline_s(pinned(interval_s=15)) == DEADLINE_S
    assert deadline_s(pinned(interval_s=300)) == 3000


@st.composite
def stuck_facts(draw):
    counts = {"prefill": draw(st.integers(1, 4)), "decode": draw(st.integers(1, 4))}
    total = sum(counts.values())
    prefill = draw(st.integers(1, total - 1))
    target = Target(counts, prefill, total - prefill)
    served = draw(st.integers(0, prefill)), draw(st.integers(0, total - prefill))
    limits = replace(WIDE, budget_gpus=draw(st.none() | st.integers(total, 8)))
    return stuck(limits, target, served)


@settings(deadline=None, max_examples=80)
@given(stuck_facts())
def test_nothing_that_serves_is_given_up(seen):
    decision = decide(seen, NOW)
    assert is_legal(seen.limits, decision.target)
    for name, count in as_served(seen).target.pools.items():
        assert decision.target.pools[name] >= count
    is_open = sum(w.ready for w in seen.workers) < len(seen.workers)
    if is_open and decision.reason != "MoveStuck":
        assert decision.target == seen.target
