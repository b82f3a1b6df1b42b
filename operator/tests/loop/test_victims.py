"""Which pods go when a pool shrinks: who does not serve, then a role's surplus, then the least loaded, then by name."""

from __future__ import annotations

import pytest

from tandem_operator.loop.victims import choose_victims
from tandem_operator.plan.facts import Role, Target, WorkerState

P, D, B = Role.PREFILL, Role.DECODE, Role.BOTH
POOL = "decode"


def pod(name, role=D, load=1.0, *, ready=True, pool=POOL, deleting=False):
    return WorkerState(name, pool, role, ready, load, 60.0, deleting)


def target(count, prefill, decode):
    return Target({POOL: count}, prefill, decode)


HOME = pod("prefill-0", P, 0, pool="prefill")
THREE = [pod("a", load=5), pod("b", load=2), pod("c", load=9)]


@pytest.mark.parametrize(
    ("workers", "aim", "victims"),
    [
        pytest.param(THREE, target(3, 0, 3), (), id="as many as are wanted"),
        pytest.param(THREE, target(4, 0, 4), (), id="fewer than are wanted"),
        pytest.param(THREE, target(2, 0, 2), ("b",), id="the least loaded"),
        pytest.param(THREE, target(1, 0, 1), ("b", "a"), id="... and then the next"),
        pytest.param(THREE, Target({}, 0, 0), ("b", "a", "c"), id="a pool that the target lacks goes whole"),
        pytest.param([pod("a", load=None), pod("b", load=9)], target(1, 0, 1), ("b",), id="not known counts as most"),
        pytest.param([pod("a", load=0), pod("b", load=None)], target(1, 0, 1), ("a",), id="no load is a known load"),
        pytest.param([pod("b"), pod("a")], target(1, 0, 1), ("a",), id="equal loads by name"),
        pytest.param([pod("b", load=None), pod("a", load=None)], target(1, 0, 1), ("a",), id="no loads by name"),
        pytest.param([*THREE, HOME], target(2, 1, 2), ("b",), id="an idle pod of another pool is left alone"),
        pytest.param(
            [pod("a", load=5), pod("b", load=2), pod("c", load=0, deleting=True)],
            target(1, 0, 1),
            ("b",),
            id="a pod that leaves is not there",
        ),
        pytest.param(
            [pod("a", load=5), pod("c", load=0, deleting=True)], target(1, 0, 1), (), id="... and makes room already"
        ),
        pytest.param(
            [pod("a", B, 5), pod("b", B, 2)], Target({POOL: 1}, 0, 0), ("b",), id="workers of both roles by load alone"
        ),
    ],
)
def test_the_least_loaded_go_first(workers, aim, victims):
    assert choose_victims(workers, POOL, aim) == victims


@pytest.mark.parametrize(
    ("workers", "aim", "victims"),
    [
        pytest.param(
            [pod("a", D, 0), pod("b", P, 9), HOME],
            target(1, 1, 1),
            ("b",),
            id="of the role that has too many, however loaded",
        ),
        pytest.param(
            [pod("a", P, 0), pod("b", D, 9), pod("c", D, 5), HOME],
            target(2, 2, 1),
            ("c",),
            id="the least loaded of that role",
        ),
        pytest.param(
            [pod("a", P, 3), pod("b", P, 2), pod("c", D, 1), HOME],
            target(1, 1, 1),
            ("b", "a"),
            id="as many as there are too many",
        ),
        pytest.param(
            [pod("a", P, 9), pod("b", P, 8), pod("c", D, 1), pod("d", D, 2), HOME],
            target(3, 1, 1),
            ("b",),
            id="of the role that has more too many",
        ),
        pytest.param(
            [pod("a", P, 3), pod("b", P, 4), pod("c", D, 1), pod("d", D, 2), HOME],
            target(2, 2, 1),
            ("c", "a"),
            id="both have one too many: by load, and then the other role's",
        ),
    ],
)
def test_a_roles_surplus_goes_before_load_is_asked(workers, aim, victims):
    assert choose_victims(workers, POOL, aim) == victims


@pytest.mark.parametrize(
    ("workers", "aim", "victims"),
    [
        pytest.param(
            [pod("a", load=0), pod("b", load=9, ready=False)], target(1, 0, 1), ("b",), id="before an idle one"
        ),
        pytest.param(
            [pod("a", load=0), pod("b", load=None, ready=False)], target(1, 0, 1), ("b",), id="its load is not known"
        ),
        pytest.param(
            [pod("a", P, 0), pod("b", D, 0, ready=False), HOME],
            target(1, 1, 1),
            ("b",),
            id="before the surplus role's: the one that stays is flipped",
        ),
        pytest.param(
            [pod("a", load=5, ready=False), pod("b", load=2, ready=False), pod("c", load=0)],
            target(2, 0, 2),
            ("b",),
            id="two of them by load",
        ),
        pytest.param([pod("a", load=0), pod("b", ready=False)], target(2, 0, 2), (), id="not where nothing shrinks"),
        pytest.param(
            [pod("a", load=3), pod("b", load=1), pod("prefill-0", P, ready=False, pool="prefill")],
            target(1, 0, 1),
            ("b",),
            id="not where another pool shrinks",
        ),
        pytest.param(
            [pod("a", load=3), pod("b", load=1), pod("c", ready=False)],
            target(1, 0, 1),
            ("c", "b"),
            id="then the least loaded that serves",
        ),
    ],
)
def test_who_does_not_serve_goes_first(workers, aim, victims):
    assert choose_victims(workers, POOL, aim) == victims
