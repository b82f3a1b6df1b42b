"""What must hold whatever arrives, breaks or moves."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_operator.plan.facts import Role
from tandem_operator.simulate.router import router_of
from tests.simulate.made import TRUTH, check_conservation, cluster_of, ends, loads, requests

LINKED = replace(TRUTH, transfer_token_s=0.0013, transfer_base_s=0.003)
ROUTERS = st.sampled_from(["least-backlog", "prefix-aware", "random", "round-robin"])


@settings(deadline=None, max_examples=60)
@given(loads(), ROUTERS, st.sampled_from([None, 60, 160, 400]), st.sampled_from([0, 20]), st.sampled_from([0, 2]))
def test_every_request_ends_once_and_gives_all_back(load, router, room, short, both):
    truth = replace(LINKED, kv_tokens=room)
    made = cluster_of(requests(load), 2, 2, both, truth, max_batch=3, router=router_of(router, 1), short_tokens=short)
    made.run_until(1e4)
    check_conservation(made, [one[0] for one in load])
    too_long = 0 if room is None else sum(-(-(p + o) // 4) > room // 4 for _, p, o, _ in load)
    assert sum(r.ttft_s is None for r in made.finished) == too_long


@settings(deadline=None, max_examples=60)
@given(
    loads(),
    st.lists(st.tuples(st.floats(0, 3), st.sampled_from(["fail", "flip", "leave"]), st.integers(0, 5)), max_size=6),
    st.sampled_from([None, 160]),
)
def test_failures_flips_and_drains_lose_nobody(load, moves, room):
    truth = replace(LINKED, kv_tokens=room)
    made = cluster_of([one for one in requests(load) if one.prompt + one.output < 150], 2, 2, 2, truth, max_batch=3)
    offered = [one[0] for one in load if one[1] + one[2] < 150]
    for at, what, number in moves:
        made.at(at, lambda what=what, number=number: move(made, what, number))
    made.run_until(1e4)
    check_conservation(made, offered)
    assert all(r.ttft_s is not None and r.ttft_s >= 0 for r in made.finished)
    assert all(r.tpot_s is None or r.tpot_s > 0 for r in made.finished)


def move(cluster, what, number):
    """One of the workers but the two that do both."""
    movable = [w for w in cluster.workers if w.role is not Role.BOTH and not w.leaving]
    if number >= len(movable):
        return
    worker = movable[number]
    if what == "flip":
        cluster.flip(worker, Role.DECODE if worker.role is Role.PREFILL else Role.PREFILL)
    else:
        getattr(cluster, what)(worker)


@settings(deadline=None, max_examples=60)
@given(loads(output=12, blocks=False, gap=1e-3))
def test_more_workers_are_never_worse(load):
    small, large = cluster_of(requests(load), 1, 1), cluster_of(requests(load), 6, 6)
    small.run_until(1e4)
    large.run_until(1e4)
    for one, other in zip(ends(small), ends(large), strict=True):
        assert other[1] <= one[1] + 1e-9
        # Steps of its own; but a request may now join others that it followed before: one step more at most.
        assert other[3] <= one[3] + 2 * TRUTH.step_s(8, 1000)


@settings(deadline=None, max_examples=30)
@given(loads(), ROUTERS)
def test_the_same_input_gives_the_same_bytes(load, router):
    one = cluster_of(requests(load), 2, 3, 1, LINKED, router=router_of(router, 7))
    other = cluster_of(requests(load), 2, 3, 1, LINKED, router=router_of(router, 7))
    one.run_until(1e4)
    for at in (0.1, 0.5, 2.0, 1e4):  # looking does not change what is seen
        other.run_until(at)
    for column in ("arrived", "ttft", "tpot", "done", "path", "retries", "first_ttft"):
        assert getattr(one.ledger, column).tobytes() == getattr(other.ledger, column).tobytes()
