from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.plan.facts import Role, Target, WorkerState
from tandem_operator.plan.flips import choose_flips
from tests.plan.examples import H100, H200, pool

P, D = Role.PREFILL, Role.DECODE
POOLS = (pool(), pool("decode", D))


def pod(name, role, load=1.0, ready=True, home=None, deleting=False):
    return WorkerState(name, home or name.split("-")[0], role, ready, load, 60.0, deleting)


THREE = [pod("prefill-0", P), pod("decode-0", D, 5), pod("decode-1", D, 2)]


@pytest.mark.parametrize(
    ("workers", "target", "minima", "flipped"),
    [
        pytest.param(THREE, (1, 2), (1, 1), [], id="right already"),
        pytest.param(THREE, (2, 1), (1, 1), ["decode-1"], id="least loaded first"),
        pytest.param(THREE, (2, 1), (1, 2), [], id="never below the minimum"),
        pytest.param(
            [THREE[0], pod("decode-0", D), pod("decode-1", D, None)],
            (2, 1),
            (1, 1),
            ["decode-0"],
            id="unknown load last",
        ),
        pytest.param(
            [THREE[0], pod("decode-0", D), pod("decode-1", D, ready=False)],
            (2, 1),
            (1, 1),
            ["decode-1"],
            id="unready first",
        ),
        pytest.param(
            [pod("prefill-0", P), pod("decode-0", P, 9), pod("prefill-1", P, 0)],
            (2, 1),
            (1, 1),
            ["decode-0"],
            id="home first",
        ),
        pytest.param(
            [pod("decode-0", P), pod("decode-1", D), pod("prefill-0", P), pod("prefill-1", P, ready=False)],
            (2, 2),
            (1, 1),
            [],
            id="who comes home waits for the pod that starts, and that one is not flipped in its stead",
        ),
        pytest.param(
            [pod("decode-0", P), pod("decode-1", D), pod("prefill-0", P), pod("prefill-1", P)],
            (2, 2),
            (1, 1),
            ["decode-0"],
            id="... and goes once it serves",
        ),
        pytest.param(
            [*THREE[:2], pod("decode-1", D, 0, deleting=True)], (2, 1), (1, 1), [], id="a pod that leaves is not there"
        ),
        pytest.param(THREE[:2], (2, 1), (1, 1), [], id="wait for the missing pod: no surplus yet"),
        pytest.param(
            [pod("a-0", P), pod("b-0", P), pod("c-0", P), pod("d-0", D)],
            (1, 3),
            (2, 1),
            ["a-0"],
            id="as far as allowed",
        ),
    ],
)
def test_choose_flips(workers, target, minima, flipped):
    found = choose_flips(workers, Target({}, *target), *minima, POOLS)
    assert [f.pod for f in found] == flipped


@given(
    st.lists(st.tuples(st.booleans(), st.booleans(), st.none() | st.floats(0, 9)), min_size=2, max_size=12),
    st.integers(1, 3),
    st.integers(1, 3),
    st.data(),
)
def test_roles_keep_their_minima_and_calls_converge(pods, min_prefill, min_decode, data):
    workers = [pod(f"decode-{n}", P if is_p else D, load, ready) for n, (is_p, ready, load) in enumerate(pods)]
    prefill = data.draw(st.integers(0, len(workers)))
    target = Target({}, prefill, len(workers) - prefill)
    for _ in range(3):
        before = {r: sum(w.ready and w.role is r for w in workers) for r in (P, D)}
        flips = {f.pod: f.to for f in choose_flips(workers, target, min_prefill, min_decode, POOLS)}
        workers = [pod(w.name, flips.get(w.name, w.role), w.load, w.ready) for w in workers]
        for role, minimum in ((P, min_prefill), (D, min_decode)):
            assert sum(w.ready and w.role is role for w in workers) >= min(minimum, before[role])
    assert not choose_flips(workers, target, min_prefill, min_decode, POOLS)


CROSSED = [pod("prefill-0", D), pod("prefill-1", P), pod("decode-0", P), pod("decode-1", D)]


@pytest.mark.parametrize(
    ("workers", "devices", "minima", "flipped"),
    [
        pytest.param(CROSSED, (H100, H200), (1, 1), ["prefill-0"], id="each does the other's role: one goes home"),
        pytest.param(CROSSED, (H100, H100), (1, 1), [], id="of one device type: no matter"),
        pytest.param(CROSSED, (H100, H200), (2, 2), [], id="no role may be short meanwhile"),
        pytest.param(CROSSED, (H100, H200), (1, 2), ["decode-0"], id="from the role that has one to spare"),
        pytest.param(
            [*CROSSED[:3], pod("decode-1", D, ready=False)], (H100, H200), (1, 1), [], id="not while pods start"
        ),
    ],
)
def test_workers_that_do_each_others_roles_go_home(workers, devices, minima, flipped):
    pools = (pool(device=devices[0]), pool("decode", D, device=devices[1]))
    target = Target({"prefill": 2, "decode": 2}, 2, 2)
    first = choose_flips(workers, target, *minima, pools)
    assert [f.pod for f in first] == flipped
    if first:
        turned = [replace(w, role=first[0].to) if w.name == first[0].pod else w for w in workers]
        assert len(choose_flips(turned, target, *minima, pools)) == 1
