"""The oracle's parts on small examples, and the workloads that are made of recorded ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.plan.policies.profile import Profile
from tandem_operator.simulate import scenarios
from tandem_operator.simulate.oracle import (
    Costs,
    Grid,
    Role,
    Schedule,
    by_count,
    cheapest,
    decode_misses,
    fewest_gpus,
    prefill_misses,
)
from tandem_operator.simulate.scenarios import Arrival

# 1 ms a prompt token; a step of 10 ms and 10 ms a request.
PROFILE = Profile(0.0, 0.001, 0.0, 0.010, 0.010, 0.0, max_batch=8, kv_room_tokens=1e9)
GRID = Grid(seconds=20.0, step_s=10.0, counts=(1, 2, 3))


def arrivals(*times, prompt=1000, output=1):
    return tuple(Arrival(at, prompt, output) for at in times)


@pytest.mark.parametrize(
    ("trace", "count", "missed"),
    [
        pytest.param(arrivals(0, 1, 2), 1, [0, 0, 0], id="one a second, one second each"),
        pytest.param(arrivals(0, 0, 0), 1, [1, 0, 0], id="1, 2, 3 s: the third is beyond 2.5"),
        pytest.param(arrivals(0, 0, 0), 2, [0, 0, 0], id="two workers"),
        pytest.param(arrivals(0, 0, 0, 3, 12), 1, [1, 0, 0], id="one that is late is not served: no backlog stays"),
    ],
)
def test_prefill_misses(trace, count, missed):
    assert prefill_misses(trace, PROFILE, 2.5, GRID, count) == missed


@pytest.mark.parametrize(
    ("trace", "count", "missed"),
    [
        pytest.param(arrivals(0, 0, output=50), 1, [0, 0, 0], id="two at once: 30 ms"),
        pytest.param(arrivals(0, 0, 0, output=50), 1, [1, 0, 0], id="three: 40 ms"),
        pytest.param(arrivals(0, 0, 0, output=50), 2, [0, 0, 0], id="over two workers"),
        pytest.param(arrivals(0, 0, 5, output=50), 1, [0, 0, 0], id="49 steps of 30 ms are over"),
    ],
)
def test_decode_misses(trace, count, missed):
    assert decode_misses(trace, PROFILE, 0.035, GRID, count) == missed


@pytest.mark.parametrize(
    ("misses", "start", "price", "plan"),
    [
        pytest.param(([0, 9, 0], [0, 0, 0]), 0.5, 10.0, (1, 2, 1), id="up where it is missed"),
        pytest.param(([0, 9, 0], [0, 0, 0]), 1.5, 10.0, (2, 2, 1), id="a start costs more than an interval"),
        pytest.param(([0, 9, 0], [0, 0, 0]), 0.5, 0.1, (1, 1, 1), id="a miss is cheaper"),
        pytest.param(([9, 0, 9], [0, 0, 0]), 1.5, 10.0, (2, 2, 2), id="kept through a dip: a start costs more"),
    ],
)
def test_cheapest(misses, start, price, plan):
    assert cheapest(misses, (1, 2), Costs(1.0, start), price) == plan


def test_no_miss_is_allowed():
    role = Role(([0, 9, 0], [0, 0, 0]), (1, 2), Costs(1.0, 0.5))
    assert fewest_gpus([role], allowed=0) == [(1, 2, 1)]


def test_counts_beyond_enough_are_not_asked_for():
    asked = []

    def missed(count):
        asked.append(count)
        return [max(2 - count, 0)]

    assert by_count(missed, (1, 2, 3, 4)) == ([1], [0], [0], [0])
    assert asked == [1, 2]


def test_replicas_are_ordered_a_start_ahead_and_kept_until_they_are_not_needed():
    plan = Schedule(prefill=(1, 1, 3, 1), decode=(2, 2, 2, 1), step_s=10.0, lead_s=15.0)
    assert [plan.at(t) for t in (0, 5, 20, 29, 30, 99)] == [(1, 2), (3, 2), (3, 2), (3, 2), (1, 1), (1, 1)]


def test_thickened_keeps_the_pace():
    trace = arrivals(0, 10, 20, 30)
    thick = scenarios.thickened(trace, 2, 5.0)
    assert [a.at for a in thick] == [0, 5, 5, 10, 15, 20, 25, 30]


def test_copies_share_no_prefixes():
    thick = scenarios.thickened((Arrival(0, 9, 9, (1, 2)), Arrival(9, 9, 9, (3,))), 2)
    assert len({h for a in thick for h in a.hashes}) == 6


def test_a_burst_doubles_the_rate_while_it_lasts():
    trace = arrivals(*range(100))
    burst = scenarios.with_bursts(trace, [20], 10, 2)
    assert (len(burst), sum(20 <= a.at < 30 for a in burst)) == (110, 20)


def test_nights_are_thin():
    thin = scenarios.day_and_night(arrivals(*(n / 10 for n in range(1000))), period=100, night=0.2)
    assert sum(a.at < 10 for a in thin) < 30 < 90 < sum(45 <= a.at < 55 for a in thin)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=30), st.integers(1, 4))
def test_all_stay_in_order(times, copies):
    trace = arrivals(*sorted(times))
    for made in (
        scenarios.thickened(trace, copies),
        scenarios.with_bursts(trace, [10.0], 5, 3),
        scenarios.alternating(trace, trace, 10, 60),
        scenarios.day_and_night(trace, 30, 0.5),
    ):
        assert [a.at for a in made] == sorted(a.at for a in made)
