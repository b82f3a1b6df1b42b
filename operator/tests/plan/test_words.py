"""Why a cheaper plan was not taken: the words name what keeps the planner from it."""

from dataclasses import replace

import pytest

from tandem_operator.plan.decide import decide
from tandem_operator.plan.facts import Role, Steadiness, Target
from tests.plan.examples import NOW, history, observed, pinned, pool, starving

WIDE = pinned(pools=(pool(), pool("decode", Role.DECODE, 1, 4, 2)), budget_gpus=None, role_flips=False)
QUICK = replace(WIDE, steadiness=Steadiness(down_window_s=60))


def plan(prefill, decode):
    return Target({"prefill": prefill, "decode": decode}, prefill, decode)


@pytest.mark.parametrize(
    ("seen", "other", "words"),
    [
        pytest.param(
            observed(QUICK, plan(4, 4), history=history(20, plan(4, 4))),
            plan(3, 2),
            "cheaper, but pool decode goes 4→2, and one step removes at most 1",
            id="the step",
        ),
        pytest.param(
            observed(WIDE, history=starving()),
            plan(2, 1),
            "cheaper, but pool decode gives none away while targets are missed",
            id="a breach",
        ),
        pytest.param(
            observed(WIDE, plan(4, 4), history=history(20, plan(4, 4))),
            plan(3, 4),
            "cheaper, but not proven under the loads of the last 300 s and those that may come",
            id="the history is too short to prove it",
        ),
    ],
)
def test_what_keeps_the_planner_from_a_cheaper_plan_is_named(seen, other, words):
    decision = decide(seen, NOW)
    assert [one.rejected for one in decision.alternatives if one.target == other] == [words]
