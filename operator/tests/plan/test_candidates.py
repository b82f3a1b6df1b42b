import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_operator.plan.candidates import (
    Step,
    candidates,
    change_between,
    clamp,
    cost_of,
    crews,
    flips_between,
    gpus_of,
    is_legal,
)
from tandem_operator.plan.facts import Limits, RebalanceMode, Role, Target
from tests.plan.examples import CPU, H100, H200, LLAMA_70B, SLO, pinned, pool

ONE_TWO = Target({"prefill": 1, "decode": 2}, 1, 2)


def roles(targets):
    return sorted((t.prefill, t.decode) for t in targets)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        pytest.param(pinned(), [(1, 2), (2, 1)], id="pinned: only roles"),
        pytest.param(pinned(role_flips=False), [(1, 2)], id="no flips: roles follow the pools"),
        pytest.param(pinned(min_decode=2), [(1, 2)], id="a role keeps its minimum"),
    ],
)
def test_candidates_of_three_pinned_workers(limits, expected):
    assert roles(candidates(limits, ONE_TWO, Step(4, 1, 4))) == expected


def test_steps_bound_replicas_and_flips():
    limits = Limits(SLO, RebalanceMode.AUTO, (pool(high=40), pool("decode", Role.DECODE, 1, 40)), role_flips=True)
    now = Target({"prefill": 10, "decode": 10}, 10, 10)
    found = list(candidates(limits, now, Step(4, 1, 2)))
    assert {t.pools["prefill"] for t in found} == set(range(9, 15))
    assert max(flips_between(limits, now, t) for t in found) == 2


def test_budgets_hold_by_accelerator_too():
    pools = (pool(high=8, gpus=4), pool("decode", Role.DECODE, 1, 8, device=H200, gpus=4))
    limits = Limits(SLO, RebalanceMode.AUTO, pools, budget_gpus=40, budget_per_device={"h200-sxm": 16})
    found = list(candidates(limits, Target({"prefill": 2, "decode": 2}, 2, 2)))
    assert max(t.pools["decode"] for t in found) == 4
    assert max(gpus_of(limits, t.pools) for t in found) == 40


@pytest.mark.parametrize(
    ("limits", "pools", "prefill", "expected"),
    [
        pytest.param(pinned(), {}, None, ONE_TWO, id="nothing known: initial"),
        pytest.param(
            pinned(), {"prefill": 1, "decode": 2}, 2, Target({"prefill": 1, "decode": 2}, 2, 1), id="roles kept"
        ),
        pytest.param(
            pinned(), {"prefill": 9, "decode": 0, "gone": 4}, 7, Target({"prefill": 1, "decode": 2}, 2, 1), id="clamped"
        ),
        pytest.param(pinned(role_flips=False), {}, 2, ONE_TWO, id="no flips: home"),
        pytest.param(pinned(budget_gpus=2), {}, None, None, id="minima over budget"),
        pytest.param(pinned(min_prefill=2, min_decode=2), {}, None, None, id="too few workers for the minima"),
    ],
)
def test_clamp(limits, pools, prefill, expected):
    assert clamp(limits, pools, prefill) == expected


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        pytest.param(ONE_TWO, ([("h100-sxm", 1)], [("h200-sxm", 2)]), id="all at home"),
        pytest.param(
            Target({"prefill": 1, "decode": 2}, 2, 1),
            ([("h100-sxm", 1), ("h200-sxm", 1)], [("h200-sxm", 1)]),
            id="flipped",
        ),
    ],
)
def test_crews_know_which_device_does_which_role(target, expected):
    limits = pinned(pools=(pool(), pool("decode", Role.DECODE, 1, 4, device=H200)))
    names = {prior.pass_s: device.name for device in (H100, H200) for prior in [_prior(device)]}
    found = tuple([(names[c.prior.pass_s], c.workers) for c in side] for side in crews(limits, target, LLAMA_70B))
    assert found == expected


def _prior(device):
    from tandem_operator.plan.roofline import prior_of

    return prior_of(device, 1, LLAMA_70B)


def test_a_flip_is_less_change_than_a_replica():
    limits = pinned(pools=(pool(), pool("decode", Role.DECODE, 1, 4)), budget_gpus=None)
    flip, replica = Target({"prefill": 1, "decode": 2}, 2, 1), Target({"prefill": 2, "decode": 2}, 2, 2)
    assert change_between(limits, ONE_TWO, flip) < change_between(limits, ONE_TWO, replica)


def test_cost_is_price_where_all_are_known():
    free = pinned(pools=(pool(), pool("decode", Role.DECODE, 1, 4, device=H200)))
    assert cost_of(free, {"prefill": 1, "decode": 2}) == pytest.approx(3.0 + 2 * 3.8)
    unknown = pinned(pools=(pool(device=CPU), pool("decode", Role.DECODE, 1, 4, device=type(CPU)("x", 1, 1, 1, 1, 0))))
    assert cost_of(unknown, {"prefill": 1, "decode": 2}) == 3


@st.composite
def limits_and_counts(draw):
    pools = []
    for name, role in (("prefill", Role.PREFILL), ("decode", Role.DECODE), ("spare", Role.DECODE)):
        low = draw(st.integers(0, 3))
        high = draw(st.integers(max(low, 1), 6))
        pools.append(
            pool(
                name,
                role,
                low,
                high,
                draw(st.integers(low, high)),
                draw(st.sampled_from((H100, H200))),
                draw(st.integers(1, 4)),
            )
        )
    limits = Limits(
        SLO,
        RebalanceMode.AUTO,
        tuple(pools),
        draw(st.integers(1, 3)),
        draw(st.integers(1, 3)),
        draw(st.none() | st.integers(1, 60)),
        {},
        draw(st.booleans()),
    )
    counts = draw(st.dictionaries(st.sampled_from(["prefill", "decode", "spare", "gone"]), st.integers(0, 12)))
    return limits, counts, draw(st.none() | st.integers(0, 20))


@settings(deadline=None, max_examples=150)
@given(limits_and_counts())
def test_what_is_clamped_or_enumerated_is_legal(case):
    limits, counts, prefill = case
    target = clamp(limits, counts, prefill)
    if target is None:
        return
    assert is_legal(limits, target)
    assert clamp(limits, target.pools, target.prefill) == target
    found = list(candidates(limits, target, Step(2, 1, 2)))
    assert target in found
    for other in found:
        assert limits.budget_gpus is None or gpus_of(limits, other.pools) <= limits.budget_gpus
        assert other.prefill >= limits.min_prefill
        assert other.decode >= limits.min_decode
        assert other.prefill + other.decode == sum(other.pools.values())
        assert all(p.minimum <= other.pools[p.name] <= p.maximum for p in limits.pools)
