"""Rollouts of prefill and decode as pairs: who may go now, and that a pair serves throughout."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_operator.plan.facts import Role
from tandem_operator.plan.rollout import Lane, Member, has_pair, keeps_pair, pools_to_hold
from tandem_operator.templates.groups import step_of

P, D, B = Role.PREFILL, Role.DECODE, Role.BOTH


def pool(name, role, word):
    """`oOn`: a worker of the old revision (`O` ready, `o` not), of the new one (`N`, `n`)."""
    return [Member(f"{name}{i}", name, role, c.isupper(), c.lower(), c.lower() == "n") for i, c in enumerate(word)]


@pytest.mark.parametrize(
    ("prefill", "decode", "held"),
    [
        pytest.param("OO", "OO", set(), id="both roles begin"),
        pytest.param("NN", "NN", set(), id="nothing is to be done"),
        pytest.param("On", "On", {"p", "d"}, id="each waits for its new worker"),
        pytest.param("ON", "On", {"p", "d"}, id="the faster role waits for the slower"),
        pytest.param("ON", "ON", set(), id="the new pair serves, so the last old ones may go"),
        pytest.param("O", "OO", {"p"}, id="the larger role goes first, while a pair is left"),
        pytest.param("O", "ON", {"d"}, id="a role with one worker goes when nothing else can"),
        pytest.param("O", "O", set(), id="one of each: both go at once, so that the gap is one"),
        pytest.param("ONNN", "OOOOOOON", {"p"}, id="shares count, not workers"),
        pytest.param("oNNN", "NNNN", set(), id="an old one that is not ready is no loss"),
    ],
)
def test_who_waits(prefill, decode, held):
    assert who_waits(prefill, decode, step=1) == held


@pytest.mark.parametrize(
    ("prefill", "decode", "step", "held"),
    [
        pytest.param("OOOO", "OOOO", 2, set(), id="two of each role begin"),
        pytest.param("OOnN", "OOnn", 2, {"p", "d"}, id="each step waits for all of its new workers"),
        pytest.param("OONN", "OOnn", 2, {"p", "d"}, id="the faster role waits for the slower"),
        pytest.param("OONN", "OONN", 2, set(), id="the new pairs serve"),
        pytest.param("OO", "OOOO", 2, {"p"}, id="a step that takes the last old pair waits"),
        pytest.param("OO", "OO", 2, set(), id="no step keeps a pair: both go at once"),
        pytest.param("OOON", "OOON", 9, set(), id="as many as there are"),
        pytest.param("oOON", "OOON", 2, set(), id="the new pair stays whoever goes"),
    ],
)
def test_who_waits_where_several_go_at_once(prefill, decode, step, held):
    assert who_waits(prefill, decode, step) == held


def who_waits(prefill, decode, step):
    lanes = [Lane("p", P, len(prefill), False, step), Lane("d", D, len(decode), False, step)]
    return pools_to_hold([*pool("p", P, prefill), *pool("d", D, decode)], lanes, unhealthy=False)


@pytest.mark.parametrize(("most", "replicas", "step"), [(1, 4, 1), (2, 4, 2), (9, 4, 3), (4, 1, 1), (4, 0, 1)], ids=str)
def test_a_pool_of_several_keeps_one(most, replicas, step):
    assert step_of(most, replicas) == step


@given(
    word=st.lists(st.tuples(st.sampled_from("pqd"), st.sampled_from([P, D, B]), st.sampled_from("oOnN")), max_size=7),
    step=st.integers(1, 3),
)
def test_a_pair_is_kept_just_if_no_choice_of_victims_ends_it(word, step):
    """The count against all choices, one by one."""
    members = [m for i, (name, role, c) in enumerate(word) for m in [replace(pool(name, role, c)[0], name=f"{i}")]]
    lane = Lane("p", P, 4, held=False, step=step)
    old = [m for m in members if m.pool == "p" and not m.current]
    choices = combinations(old, min(step, len(old)))
    assert keeps_pair(lane, members) is all(has_pair([m for m in members if m not in gone]) for gone in choices)


def test_all_wait_while_new_workers_are_unhealthy():
    lanes = [Lane("p", P, 2, held=False), Lane("d", D, 2, held=False), Lane("e", D, 1, held=False)]
    members = [*pool("p", P, "On"), *pool("d", D, "OO"), *pool("e", D, "N")]
    assert pools_to_hold(members, lanes, unhealthy=True) == {"p", "d"}


def test_pools_of_one_role_go_one_after_the_other():
    lanes = [Lane("p", P, 2, held=False), Lane("d", D, 2, held=False), Lane("e", D, 2, held=False)]
    members = [*pool("p", P, "OO"), *pool("d", D, "OO"), *pool("e", D, "OO")]
    assert pools_to_hold(members, lanes, unhealthy=False) == {"e"}


@pytest.mark.parametrize("held", [False, True])
def test_between_two_pods_a_pool_stays_as_it_is(held):
    """Pausing there would bring back the old pod in place of the new one."""
    lanes = [Lane("p", P, 2, held=held), Lane("d", D, 2, held=False)]
    found = pools_to_hold([*pool("p", P, "O"), *pool("d", D, "On")], lanes, unhealthy=False)
    assert ("p" in found) is held


def test_colocated_workers_go_one_at_a_time():
    lanes = [Lane("b", B, 3, held=False)]
    assert pools_to_hold(pool("b", B, "OOO"), lanes, unhealthy=False) == set()
    assert pools_to_hold(pool("b", B, "OOn"), lanes, unhealthy=False) == {"b"}


class Cluster:
    """Deployments with surge 0, whose pods start when chance has it."""

    def __init__(self, sizes, seed, most):
        self.chance = random.Random(seed)
        self.lanes = {name: Lane(name, role, n, False, step_of(most, n)) for name, (role, n) in sizes.items()}
        self.members = [m for name, (role, size) in sizes.items() for m in pool(name, role, "O" * size)]
        self.away = dict.fromkeys(sizes, 0)

    def operator(self):
        held = pools_to_hold(self.members, list(self.lanes.values()), unhealthy=False)
        self.lanes = {name: replace(lane, held=name in held) for name, lane in self.lanes.items()}

    def controllers(self):
        for name, lane in self.lanes.items():
            mine = [m for m in self.members if m.pool == name]
            old = [m for m in mine if not m.current]
            if len(mine) < lane.desired:  # always brought up again, of the new template
                self.members.append(Member(f"{name}{self.chance.random()}", name, lane.role, False, "n", True))
            elif old and not lane.held:
                spare = lane.step - sum(not m.ready for m in mine)
                for gone in self.chance.sample(old, max(min(spare, len(old)), 0)):
                    self.members.remove(gone)

    def kubelets(self):
        late = [m for m in self.members if not m.ready]
        for member in late:
            if self.chance.random() < 0.5:
                self.members.remove(member)
                self.members.append(Member(member.name, member.pool, member.role, True, "n", True))


@settings(max_examples=200, deadline=None)
@given(
    prefill=st.lists(st.integers(1, 4), min_size=1, max_size=2),
    decode=st.lists(st.integers(1, 4), min_size=1, max_size=2),
    most=st.integers(1, 3),
    seed=st.integers(0, 10_000),
)
def test_every_rollout_ends_and_a_pair_serves_throughout(prefill, decode, most, seed):
    sizes = {f"p{i}": (P, n) for i, n in enumerate(prefill)} | {f"d{i}": (D, n) for i, n in enumerate(decode)}
    cluster = Cluster(sizes, seed, most)
    for _ in range(400):
        cluster.operator()
        cluster.controllers()
        if min(sum(prefill), sum(decode)) > 1:
            assert has_pair(cluster.members), "two of each role are enough to serve on"
        for role in (P, D):
            sized = sum(size for found, size in sizes.values() if found is role)
            ready = sum(m.ready for m in cluster.members if m.role is role)
            assert sized - ready <= most, "no more of a role are away than it may have"
        cluster.operator()
        cluster.kubelets()
        if all(m.current and m.ready for m in cluster.members) and len(cluster.members) == sum(prefill) + sum(decode):
            return
    raise AssertionError(f"not done: {cluster.members}")
