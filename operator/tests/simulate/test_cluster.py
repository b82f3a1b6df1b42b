"""Routers, flips, failures."""

from dataclasses import replace

import pytest

from tandem_operator.plan.facts import Role
from tandem_operator.simulate.request import Path
from tandem_operator.simulate.router import router_of
from tandem_operator.simulate.worker import Request
from tests.simulate.made import TRUTH, check_conservation, cluster_of

SAME = tuple(range(4))


def routed(name, offered, seed=0, **options):
    """Where each request went, in the order of arrival: (prefill, decode) by number."""
    chosen = []

    class Watch:
        router = router_of(name, seed)

        def choose(self, request, prefills, decodes):
            pair = self.router.choose(request, prefills, decodes)
            chosen.append((prefills.index(pair[0]), decodes.index(pair[1])))
            return pair

    cluster_of(offered, 3, 2, router=Watch(), **options).run_until(1000)
    return chosen


def burst(count=4, gap=0.0):
    return [Request(n * gap, 32, 8) for n in range(count)]


def test_round_robin_takes_turns():
    assert routed("round-robin", burst()) == [(0, 0), (1, 1), (2, 0), (0, 1)]


def test_least_backlog_evens_out():
    assert routed("least-backlog", burst()) == [(0, 0), (1, 1), (2, 0), (0, 1)]
    assert routed("least-backlog", burst(gap=60)) == [(0, 0)] * 4


def test_random_keeps_its_seed():
    assert routed("random", burst(40), 1) == routed("random", burst(40), 1) != routed("random", burst(40), 2)


def test_prefix_aware_follows_the_prefix_until_load_outweighs_it():
    calm = [Request(0.0, 32, 8, tuple(range(90, 94))), *(Request(60.0 * n, 32, 8, SAME) for n in range(1, 4))]
    assert len(set(routed("prefix-aware", calm)[1:])) == 1
    rush = [Request(0.0, 32, 8, SAME), *(Request(60.0, 32, 8, SAME) for _ in range(40))]
    assert {p for p, _ in routed("prefix-aware", rush)[1:]} == {0, 1, 2}


def test_an_unknown_router_is_refused():
    with pytest.raises(ValueError, match="write one of least-backlog"):
        router_of("best")


def test_short_prompts_stay_on_the_decode_worker():
    made = cluster_of([Request(0.0, 80, 4), Request(9.0, 8, 4)], short_tokens=10)
    made.run_until(100)
    assert [r.path for r in made.finished] == [Path.PAIR, Path.ALONE]


def test_what_fits_nowhere_is_refused():
    made = cluster_of([Request(0.0, 80, 40), Request(0.1, 8, 4)], truth=replace(TRUTH, kv_tokens=100))
    made.run_until(100)
    assert [r.path for r in made.finished] == [Path.REFUSED, Path.PAIR]


def test_unsorted_arrivals_are_refused():
    with pytest.raises(ValueError, match=r"request 2 arrives at .* before its predecessor"):
        cluster_of([Request(2.0, 8, 4), Request(1.0, 8, 4)]).run_until(10)


def test_a_flipped_worker_finishes_what_it_has():
    made = cluster_of([Request(0.0, 32, 100), Request(1.0, 96, 4)], 1, 2)
    decoder = made.workers[1]
    made.at(0.5, lambda: made.flip(decoder, Role.PREFILL))
    made.run_until(0.9)
    assert decoder.batch.size == 1
    made.run_until(100)
    check_conservation(made, [0.0, 1.0])
    assert [r.retries for r in made.finished] == [0, 0]
    assert decoder.counters[Role.PREFILL].decode_tokens > 0  # under its new role it went on decoding


def test_a_leaving_worker_takes_no_more_and_goes_when_it_is_done():
    made = cluster_of([Request(0.0, 32, 40), Request(0.6, 32, 4)], 1, 2)
    leaver = made.workers[1]
    made.at(0.5, lambda: made.leave(leaver))
    made.run_until(100)
    done = {r.arrived: r.done_at for r in made.finished}
    assert leaver.gone_at == pytest.approx(done[0.0])
    assert made.gone == [leaver]


@pytest.mark.parametrize(
    ("dies", "at"),
    [
        pytest.param(0, 0.02, id="prefill worker, while it computes"),
        pytest.param(2, 0.02, id="decode worker, before the KV comes"),
        pytest.param(2, 0.4, id="decode worker, while it decodes"),
    ],
)
def test_a_dead_workers_requests_start_again_elsewhere(dies, at):
    untouched = cluster_of([Request(0.0, 80, 40)], 2, 2)
    untouched.run_until(100)
    made = cluster_of([Request(0.0, 80, 40)], 2, 2)
    made.at(at, lambda: made.fail(made.workers[dies]))
    made.run_until(100)
    (request,), (before,) = made.finished, untouched.finished
    assert (made.lost, request.retries, len(made.workers)) == (1, 1, 3)
    assert request.done_at > before.done_at
    # The first token is out once; what was decoded is not decoded again.
    assert (request.ttft_s == before.ttft_s) is (at > before.ttft_s)
    assert request.done_at - before.done_at < at + 0.2
    check_conservation(made, [0.0])


def test_nobody_left_to_serve_means_waiting_for_the_next():
    made = cluster_of([Request(0.0, 32, 4)], 1, 1)
    only = made.workers[0]
    made.at(0.01, lambda: made.fail(only))
    made.run_until(5.0)
    assert (made.unplaced, len(made.finished)) == (1, 0)
    made.workers += cluster_of([], 1, 0).workers
    made.run_until(10.0)
    assert len(made.finished) == 1
