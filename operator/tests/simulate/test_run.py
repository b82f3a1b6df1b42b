"""Whole runs under fixed policies: what the result carries."""

from dataclasses import replace
from itertools import pairwise

import pytest

from tandem_operator.plan.facts import Action, Decision, PoolLimits, RebalanceMode, Role, Target
from tandem_operator.simulate.run import Failure, Scenario, Simulation
from tandem_operator.simulate.worker import Request, Truth
from tests.plan.examples import H100, H200, SMOL, pinned

FAST, SLOW = Truth(0.0001, 0.01, 0.001), Truth(0.001, 0.03, 0.01)


def steady(count=200, gap=0.25, prompt=200, output=20):
    return (Request(n * gap, prompt, output) for n in range(count))


def limits(*pools, **changes):
    return pinned(pools=pools, budget_gpus=None, mode=RebalanceMode.OFF, **changes)


def pool(name, role, device=H100, gpus=1):
    return PoolLimits(name, role, device, gpus, 0, 9, 1)


PAIR = limits(pool("prefill", Role.PREFILL), pool("decode", Role.DECODE))


def targets(*plan):
    """A policy: (from this second on, replicas by pool, prefill workers, decode workers)."""

    def decide(seen, now):
        at = (now - now.replace(hour=0, minute=0, second=0)).total_seconds()
        _, pools, prefill, decode = max((one for one in plan if one[0] <= at), key=lambda one: one[0])
        return Decision(Action.HOLD, "Fixed", "", Target(pools, prefill, decode))

    return decide


FIXED = targets((0, {"prefill": 1, "decode": 1}, 1, 1))


def play(bounds=PAIR, policy=FIXED, seconds=80, truth=FAST, arrivals=None, **options):
    scenario = Scenario(bounds, SMOL, {p.name: truth for p in bounds.pools}, **options)
    return Simulation(scenario, steady() if arrivals is None else arrivals, policy).play(seconds)


def test_a_run_carries_an_array_a_column():
    run = play()
    columns = run.arrays
    assert {len(column) for column in columns.values()} == {200}
    assert run.arrived == 200
    first = run.requests[0]
    assert (columns["arrived"][0], columns["ttft"][0], columns["tpot"][0]) == (
        first.arrived,
        first.ttft_s,
        first.tpot_s,
    )
    assert all(a <= b for a, b in pairwise(columns["done"]))


def test_a_tick_has_roles_queue_and_utilisation():
    ticks = play(truth=SLOW).ticks
    assert [t.at for t in ticks] == [5.0 * n for n in range(17)]
    middle = ticks[5]
    assert middle.roles == {Role.PREFILL: 1, Role.DECODE: 1, Role.BOTH: 0}
    assert 0.6 < middle.utilisation[Role.PREFILL] < 1  # 4/s of 0.2 s
    assert middle.utilisation[Role.BOTH] is None
    assert middle.queue >= 0


def test_the_same_input_gives_the_same_bytes_and_records():
    one, other = play(router="random", seed=3), play(router="random", seed=3)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(one.arrays.values(), other.arrays.values(), strict=True))
    assert one.records == other.records
    assert play(records=False).records == []


def test_gpu_seconds_count_from_order_to_the_end_of_the_drain():
    bounds = limits(pool("prefill", Role.PREFILL), pool("decode", Role.DECODE, gpus=4))
    plan = targets((0, {"prefill": 1, "decode": 1}, 1, 1), (20, {"prefill": 2, "decode": 1}, 2, 1),
                   (60, {"prefill": 1, "decode": 1}, 1, 1))  # fmt: skip
    run = play(bounds, plan)
    # One for all of 80 s; one ordered at 20 that serves at 50 and, idle, goes at 60.
    assert run.gpu_seconds_by_pool["prefill"] == pytest.approx(80 + 40, abs=0.1)
    assert run.gpu_seconds_by_pool["decode"] == 4 * 80
    assert run.gpu_seconds == sum(run.gpu_seconds_by_pool.values())
    serving = {t.at: t.roles[Role.PREFILL] for t in run.ticks}
    assert [serving[at] for at in (20, 45, 55, 65)] == [1, 1, 2, 1]


def test_pools_have_their_own_costs():
    bounds = limits(pool("h100", Role.PREFILL), pool("h200", Role.PREFILL, H200), pool("decode", Role.DECODE))
    scenario = Scenario(bounds, SMOL, {"h100": SLOW, "h200": FAST, "decode": FAST})
    counts = {"h100": 1, "h200": 1, "decode": 1}
    run = Simulation(scenario, steady(gap=0.1), targets((0, counts, 2, 1))).play(80)
    times = {round(ttft, 4) for ttft in run.arrays["ttft"]}
    assert {0.2, 0.02} <= times


def test_colocated_workers_do_both():
    bounds = limits(pool("both", Role.BOTH))
    run = play(bounds, targets((0, {"both": 2}, 0, 0)))
    assert len(run.requests) == 200
    assert {t.roles[Role.BOTH] for t in run.ticks[1:]} == {2}


def test_a_dead_worker_is_replaced_and_its_requests_are_counted():
    calm = play()
    run = play(failures=(Failure(20.02, "decode"),), start_delay_s=10)
    assert (len(run.requests), run.lost > 0) == (200, True)
    assert sum(run.arrays["retries"]) == run.lost
    down = [t.at for t in run.ticks if t.roles[Role.DECODE] == 0 and t.at > 0]
    assert down == [25.0, 30.0]
    assert max(run.arrays["ttft"]) > 10 > max(calm.arrays["ttft"])


def test_a_flip_is_seen_after_its_delay_and_nobody_is_lost():
    bounds = replace(limits(pool("prefill", Role.PREFILL), pool("decode", Role.DECODE)), role_flips=True, min_decode=1)
    plan = targets((0, {"prefill": 1, "decode": 2}, 1, 2), (20, {"prefill": 1, "decode": 2}, 2, 1))
    run = play(bounds, plan, flip_delay_s=2.0)
    roles = {t.at: (t.roles[Role.PREFILL], t.roles[Role.DECODE]) for t in run.ticks}
    assert (roles[20], roles[25]) == ((1, 2), (2, 1))
    assert len(run.requests) == 200
    assert set(run.arrays["retries"]) == {0}
