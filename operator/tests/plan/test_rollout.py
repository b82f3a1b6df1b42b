"""Rollouts of prefill and decode as pairs: who may go now, and that a pair serves throughout."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_operator.plan.facts import Role
from tandem_operator.plan.rollout import Lane, Member, has_pair, keeps_pair, pools_to_hold, steps

P, D, B = Role.PREFILL, Role.DECODE, Role.BOTH


def pool(name, role, word):
    """`oOn`: a worker of the old revision (`O` ready, `o` not), of the new one (`N`, `n`)."""
    return [Member(f"{name}{i}", name, role, c.isupper(), c.lower(), c.lower() == "n") for i, c in enumerate(word)]


@pytest.mark.parametrize(
    ("prefill", "decode", "held"),
    [
        pytest.param("OO", "OO", {"d"}, id="one role begins, the other waits for its turn"),
        pytest.param("On", "OO", {"p", "d"}, id="nobody else goes while a new worker starts"),
        pytest.param("ON", "OO", {"p"}, id="then it is the other role's turn"),
        pytest.param("ON", "ON", {"d"}, id="and the first one's again"),
        pytest.param("oO", "OO", {"p"}, id="who is away by itself was not taken by the rollout"),
        pytest.param("O", "OO", {"p"}, id="the larger role goes first, while a pair is left"),
        pytest.param("O", "ON", {"d"}, id="a role with one worker goes when nothing else can"),
        pytest.param("O", "O", {"p"}, id="one of each: one goes"),
        pytest.param("O", "N", set(), id="and then the other"),
        pytest.param("o", "o", {"p"}, id="none serves, and all the same one goes at a time"),
    ],
)
def test_roles_take_turns_where_one_worker_may_be_away(prefill, decode, held):
    assert who_waits(prefill, decode, 1, most=1) == held


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
    assert who_waits(prefill, decode, 1, most=2) == held


@pytest.mark.parametrize(
    ("prefill", "decode", "step", "most", "held"),
    [
        pytest.param("OOOO", "OOOO", 2, 4, set(), id="two of each role begin"),
        pytest.param("OOOO", "OOOO", 2, 3, {"d"}, id="no room for both steps"),
        pytest.param("OnnN", "OOOO", 2, 3, {"p", "d"}, id="nor beside those that start"),
        pytest.param("OOnN", "OOnn", 2, 4, {"p", "d"}, id="each step waits for all of its new workers"),
        pytest.param("OONN", "OOnn", 2, 4, {"p", "d"}, id="the faster role waits for the slower"),
        pytest.param("OONN", "OONN", 2, 4, set(), id="the new pairs serve"),
        pytest.param("OO", "OOOO", 2, 4, {"p"}, id="a step that takes the last old pair waits"),
        pytest.param("OO", "OO", 2, 4, set(), id="no step keeps a pair: both go at once"),
        pytest.param("OO", "OO", 2, 3, {"p"}, id="no step keeps a pair, and there is room for one"),
        pytest.param("OOON", "OOON", 9, 18, set(), id="as many as there are"),
        pytest.param("oOON", "OOON", 2, 4, set(), id="the new pair stays whoever goes"),
    ],
)
def test_who_waits_where_several_go_at_once(prefill, decode, step, most, held):
    assert who_waits(prefill, decode, step, most=most) == held


def test_nobody_else_goes_while_a_new_worker_waits_for_a_node():
    assert who_waits("OOOn", "OOOO", 2, most=8) == {"p"}
    assert who_waits("OOOn", "OOOO", 2, most=8, waits=True) == {"p", "d"}


def who_waits(prefill, decode, step, *, most, waits=False):
    lanes = [Lane("p", P, len(prefill), False, step), Lane("d", D, len(decode), False, step)]
    members = [*pool("p", P, prefill), *pool("d", D, decode)]
    return pools_to_hold(members, lanes, most=most, unhealthy=False, waits=waits)


@pytest.mark.parametrize(
    ("most", "prefill", "decode", "found"),
    [
        pytest.param(1, 4, 4, (1, 1), id="in turns"),
        pytest.param(2, 4, 4, (1, 1), id="one each"),
        pytest.param(4, 4, 4, (2, 2), id="shared out"),
        pytest.param(4, 2, 6, (1, 3), id="by size"),
        pytest.param(5, 4, 6, (2, 3), id="all of it"),
        pytest.param(3, 4, 6, (1, 2), id="what is over goes to the larger role"),
        pytest.param(2, 1, 63, (1, 1), id="a role has one at least"),
        pytest.param(99, 4, 4, (3, 3), id="a pool of several keeps one"),
        pytest.param(99, 1, 0, (1, 1), id="a pool of one, a pool of none"),
    ],
)
def test_what_may_be_away_is_shared_out(most, prefill, decode, found):
    assert tuple(steps(most, {"p": ("Prefill", prefill), "d": ("Decode", decode)}).values()) == found


def test_pools_of_one_role_share_its_part_as_they_go_one_after_the_other():
    sizes = {"p": ("Prefill", 4), "d": ("Decode", 2), "e": ("Decode", 2)}
    assert steps(4, sizes) == {"p": 2, "d": 1, "e": 1}


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
    assert pools_to_hold(members, lanes, most=9, unhealthy=True) == {"p", "d"}


def test_pools_of_one_role_go_one_after_the_other():
    lanes = [Lane("p", P, 2, held=False), Lane("d", D, 2, held=False), Lane("e", D, 2, held=False)]
    members = [*pool("p", P, "OO"), *pool("d", D, "OO"), *pool("e", D, "OO")]
    assert pools_to_hold(members, lanes, most=9, unhealthy=False) == {"e"}


@pytest.mark.parametrize("held", [False, True])
def test_between_two_pods_a_pool_stays_as_it_is(held):
    """Pausing there would bring back the old pod in place of the new one."""
    lanes = [Lane("p", P, 2, held=held), Lane("d", D, 2, held=False)]
    members = [*pool("p", P, "O"), *pool("d", D, "On")]
    found = pools_to_hold(members, lanes, most=1, unhealthy=False)
    assert ("p" in found) is held
    assert pools_to_hold(members, lanes, most=1, unhealthy=False, waits=True) == found


def test_colocated_workers_go_one_at_a_time():
    lanes = [Lane("b", B, 3, held=False)]
    assert pools_to_hold(pool("b", B, "OOO"), lanes, most=1, unhealthy=False) == set()
    assert pools_to_hold(pool("b", B, "OOn"), lanes, most=1, unhealthy=False) == {"b"}


class Cluster:
    """Deployments with surge 0, whose pods start when chance has it."""

    def __init__(self, sizes, seed, most):
        self.chance = random.Random(seed)
        self.most, most_of = most, steps(most, sizes)
        self.lanes = {name: Lane(name, role, n, False, most_of[name]) for name, (role, n) in sizes.items()}
        self.members = [m for name, (role, size) in sizes.items() for m in pool(name, role, "O" * size)]
        self.away = dict.fromkeys(sizes, 0)

    def operator(self):
        held = pools_to_hold(self.members, list(self.lanes.values()), most=self.most, unhealthy=False)
        self.lanes = {name: replace(lane, held=name in held) for name, lane in self.lanes.items()}

    def controllers(self):
        """Pool by pool in an order that chance has; the operator may look between any two of them."""
        for name in self.chance.sample(sorted(self.lanes), len(self.lanes)):
            if self.chance.random() < 0.5:
                self.operator()
            lane = self.lanes[name]
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
    both=st.lists(st.integers(1, 3), max_size=1),
    most=st.integers(1, 6),
    seed=st.integers(0, 10_000),
)
def test_every_rollout_ends_with_few_away_and_a_pair_serves_throughout(prefill, decode, both, most, seed):
    parts = (("p", P, prefill), ("d", D, decode), ("b", B, both))
    sizes = {f"{word}{i}": (role, n) for word, role, found in parts for i, n in enumerate(found)}
    cluster, total = Cluster(sizes, seed, most), sum(size for _, size in sizes.values())
    for _ in range(600):
        cluster.operator()
        cluster.controllers()
        if min(sum(prefill), sum(decode)) > 1:
            assert has_pair(cluster.members), "two of each role are enough to serve on"
        assert total - sum(m.ready for m in cluster.members) <= most, "no more are away than may be, over all roles"
        cluster.operator()
        cluster.kubelets()
        if all(m.current and m.ready for m in cluster.members) and len(cluster.members) == total:
            return
    raise AssertionError(f"not done: {cluster.members}")
