"""What a worker says of the memory that it may lock."""

from __future__ import annotations

import resource

import pytest

from tandem_worker.transfer import preflight

MIB = 1 << 20


@pytest.mark.parametrize(
    ("mode", "limit", "may_lock", "said"),
    [
        pytest.param("", 65_536, False, False, id="no RDMA"),
        pytest.param("SharedDevice", 65_536, False, True, id="a node's default"),
        pytest.param("SharedDevice", 65_536, True, False, id="the capability is in effect"),
        pytest.param("SharedDevice", resource.RLIM_INFINITY, False, False, id="no limit"),
        pytest.param("EFA", 512 * MIB, False, False, id="just enough"),
        pytest.param("EFA", 512 * MIB - 1, False, True, id="a byte too little"),
    ],
)
def test_memlock(mode, limit, may_lock, said):
    problem = preflight.memlock_problem(mode, limit, may_lock=may_lock, wanted=512 * MIB)
    assert (problem is not None) is said
    assert problem is None or all(word in problem for word in (mode, "512 MiB", "RLIMIT_MEMLOCK", "LimitMEMLOCK"))


@pytest.mark.parametrize(
    ("status", "held"),
    [
        pytest.param("Name:\tx\nCapPrm:\t0000000000004000\nCapEff:\t0000000000000000\n", False, id="permitted alone"),
        pytest.param("CapEff:\t0000000000004000\n", True, id="in effect"),
        pytest.param("CapEff:\t000001ffffffbfff\n", False, id="all others"),
        pytest.param("", False, id="no such line"),
    ],
)
def test_the_capability_counts_where_it_is_in_effect(status, held):
    assert preflight.may_lock(status) is held


def test_this_process_can_be_looked_at():
    assert preflight.look("", 1) is None
    assert preflight.look("SharedDevice", 0) is None
