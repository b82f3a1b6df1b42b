"""Whole policies on observed facts: the moves they make, their bounds, and what they do with what they do not know."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_operator.plan.candidates import is_legal
from tandem_operator.plan.facts import Action, Role, RoleUse, Slo, Target, Window
from tandem_operator.plan.policies.aibrix import Aibrix
from tandem_operator.plan.policies.dynamo import Dynamo
from tandem_operator.plan.policies.dynamo_classic import DynamoClassic
from tandem_operator.plan.policies.heteroscale import HeteroScale
from tandem_operator.plan.policies.hpa import Hpa
from tandem_operator.plan.policies.kthena import Kthena
from tandem_operator.plan.policies.static import Static
from tandem_operator.plan.policies.wva import Wva
from tests.plan.examples import NOW, observed, pinned, pool
from tests.plan.policies.test_formulas import PROFILE

POOLS = (pool(high=8, gpus=2), pool("decode", Role.DECODE, high=8, gpus=2))
LIMITS = pinned(slo=Slo(2000, 50, 99), pools=POOLS, budget_gpus=24, role_flips=False, interval_s=15)
METRICS = Hpa(0.7, 20.0)
POLICIES = {
    "static": Static(3, 5),
    "hpa": METRICS,
    "kthena": Kthena(METRICS, 0.5, 2.0),
    "aibrix": Aibrix(0.7, 20.0),
    "heteroscale": HeteroScale(500.0, 1.0),
    "dynamo classic": DynamoClassic(PROFILE),
    "dynamo": Dynamo(PROFILE),
    "wva": Wva(20_000),
}


def window(at=NOW, *, prefill=2, decode=2, rate=2.0, busy=0.7, batch=14.0, queue=0.0, ttft=900, tpot=30, **changes):
    """`busy` and `batch` of one worker; 1000 prompt tokens and 100 answered ones; steps as the profile has them."""
    steps = decode / PROFILE.step_s(batch, 1050)
    base = Window(
        at,
        30,
        rate,
        rate,
        1000.0,
        100.0,
        ttft,
        tpot,
        0.99,
        RoleUse(busy * prefill, rate * 1000, None, queue, queue * 1000),
        RoleUse(float(decode), batch * steps, steps, 0.0, None),
        prefill,
        decode,
    )
    return replace(base, **changes)


def seen(prefill=2, decode=2, minutes=10, **changes):
    """A settled resource with windows every 15 s that all tell the same."""
    target = Target({"prefill": prefill, "decode": decode}, prefill, decode)
    times = [NOW - timedelta(seconds=15 * n) for n in range(minutes * 4)][::-1]
    history = tuple(window(at, prefill=prefill, decode=decode, **changes) for at in times)
    return observed(LIMITS, target, history=history)


def blind():
    """Four and four, and every figure is gone."""
    facts = seen(4, 4)
    return replace(facts, history=tuple(replace(w, **UNKNOWN) for w in facts.history))


def counts(policy, facts):
    target = policy(facts, NOW).target
    return target.prefill, target.decode


@pytest.mark.parametrize(
    ("policy", "facts", "expected"),
    [
        pytest.param("static", {}, (3, 5), id="static: goes to its counts"),
        pytest.param("hpa", {}, (2, 2), id="hpa: on target"),
        pytest.param("hpa", {"busy": 1.0}, (3, 2), id="hpa: 1/0.7 of 2 is 2.9"),
        pytest.param("hpa", {"batch": 40.0}, (2, 4), id="hpa: 40 run where 20 should"),
        pytest.param("hpa", {"busy": 0.2, "prefill": 4}, (2, 2), id="hpa: calm for 300 s: shrinks to ceil(4·0.29)"),
        pytest.param("hpa", {"busy": 0.2, "prefill": 4, "minutes": 1}, (2, 2), id="hpa: a short history does not hold"),
        pytest.param("kthena", {"busy": 1.0, "prefill": 4, "batch": 5.0}, (6, 3), id="kthena: 6:1 leaves the ratio"),
        pytest.param("aibrix", {"busy": 1.0}, (3, 2), id="aibrix: ceil(2.9)"),
        pytest.param("aibrix", {"batch": 2.0, "decode": 6}, (2, 3), id="aibrix: at most half"),
        pytest.param(
            "heteroscale", {"decode": 2}, (3, 3), id="heteroscale: 2·14/0.024 = 1167 tokens/s ask 3, both grow"
        ),
        pytest.param("heteroscale", {"batch": 8.0, "ttft": 5000}, (3, 3), id="heteroscale: late first tokens only add"),
        pytest.param("dynamo classic", {"busy": 1.0}, (2, 1), id="classic: 2 prompts/s of 1 s, one batch of 19"),
        pytest.param("dynamo classic", {"rate": 2.5}, (2, 1), id="classic: busy 0.56 s a prompt, not 1: 2.5·0.56"),
        pytest.param("dynamo", {"rate": 3.5}, (4, 2), id="dynamo: floor 4; 28 do not fit where 19 do"),
        pytest.param("dynamo", {"queue": 4.0}, (3, 2), id="dynamo: 2 s wait on each, and 1 s of its own: +1"),
        pytest.param("wva", {"queue": 6.0}, (3, 3), id="wva: 3 wait on each, KV 0.73"),
        pytest.param("wva", {"batch": 1.0}, (1, 1), id="wva: both could be on one"),
    ],
)
def test_moves(policy, facts, expected):
    assert counts(POLICIES[policy], seen(**facts)) == expected


@pytest.mark.parametrize("name", POLICIES)
def test_first_target_is_the_initial_one(name):
    facts = replace(seen(), target=None, pools=())
    decision = POLICIES[name](facts, NOW)
    assert (decision.action, decision.target) == (Action.INITIALIZE, Target({"prefill": 1, "decode": 1}, 1, 1))


UNKNOWN = {
    "arrival_rate": None,
    "request_rate": None,
    "prompt_tokens": None,
    "output_tokens": None,
    "ttft_ms": None,
    "tpot_ms": None,
    "attainment": None,
    "prefill": RoleUse(),
    "decode": RoleUse(),
}


@pytest.mark.parametrize("name", [n for n in POLICIES if n != "static"])
def test_unknown_metrics_do_not_shrink(name):
    """The HPA, kthena and AIBrix leave a count whose metric nobody reports; Dynamo skips a NaN."""
    assert counts(POLICIES[name], blind()) == (4, 4)


def test_hpa_shrinks_on_what_few_pods_say():
    """Two of four pods report half the target; the silent ones count as 100 %, and a pod goes all the same."""
    assert counts(METRICS, partly_ready(busy=0.2)) == (3, 4)


def partly_ready(busy):
    facts = seen(4, 4, busy=busy, batch=20.0)
    workers = tuple(replace(w, ready=not w.name.startswith("prefill") or w.name < "prefill-2") for w in facts.workers)
    history = tuple(replace(w, prefill_workers=2, prefill=replace(w.prefill, busy=busy * 2)) for w in facts.history)
    return replace(facts, workers=workers, history=history)


def test_dynamo_waits_for_a_move_under_way():
    facts = seen(queue=9.0)
    starting = tuple(replace(p, ready=p.ready - 1) for p in facts.pools)
    assert POLICIES["dynamo"](replace(facts, pools=starting), NOW).reason == "ScalingInProgress"


def test_dynamo_classic_adjusts_every_180_seconds():
    facts = seen(rate=2.5)
    later = NOW + timedelta(seconds=15)
    history = (*facts.history, window(later, rate=2.5))
    assert POLICIES["dynamo classic"](replace(facts, history=history), later).reason == "NotDue"


some = st.floats(0, 50)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(POLICIES)),
    prefill=st.integers(1, 8),
    decode=st.integers(1, 8),
    rate=some,
    busy=st.floats(0, 1),
    batch=st.floats(0.1, 64),
    queue=some,
    ttft=st.one_of(st.none(), st.integers(0, 9999)),
    budget=st.integers(4, 32),
)
def test_never_outside_bounds_and_budget(name, prefill, decode, rate, busy, batch, queue, ttft, budget):
    facts = seen(prefill, decode, minutes=4, rate=rate, busy=busy, batch=batch, queue=queue, ttft=ttft)
    limits = replace(LIMITS, budget_gpus=budget)
    assert is_legal(limits, POLICIES[name](replace(facts, limits=limits), NOW).target) or (
        # A target that was illegal before, while the policy waits for something, is the resource's to correct.
        not is_legal(limits, facts.target)
    )
