"""Windows of the simulated Prometheus: how unevenly requests arrive and how long their prompts are, without a gap."""

import pytest

from tandem_operator.plan.facts import Role, Slo
from tandem_operator.simulate.cluster import Cluster
from tandem_operator.simulate.observe import Prometheus
from tandem_operator.simulate.run import EPOCH
from tandem_operator.simulate.worker import Request, SimWorker, Truth

SLO = Slo(2000, 100, 90)
TRUTH = Truth(prompt_token_s=0.0001, step_base_s=0.01, step_slope_s=0.0)


def played(requests, until=30.0, leaves_at=None):
    cluster = Cluster(iter(requests), SLO)
    cluster.workers += [SimWorker(role, role, role, TRUTH, 64) for role in (Role.PREFILL, Role.DECODE)]
    prometheus = Prometheus(30, SLO)
    prometheus.scrape(cluster)
    if leaves_at is not None:
        cluster.workers.append(SimWorker("other", Role.DECODE, Role.DECODE, TRUTH, 64))
        cluster.run_until(leaves_at)
        cluster.leave(cluster.workers[1])
    cluster.run_until(until)
    prometheus.scrape(cluster)
    return prometheus.window(cluster, EPOCH)


def even(count, prompts=(100,)):
    return [Request(0.5 + n, prompts[n % len(prompts)], 5) for n in range(count)]


@pytest.mark.parametrize(
    ("requests", "arrivals", "prompts"),
    [
        pytest.param([], None, None, id="nothing arrives"),
        pytest.param(even(30), 0.0, 0.0, id="clockwork: two in each bin of 2 s"),
        pytest.param([Request(10.1, 100, 5) for _ in range(30)], 30.0, 0.0, id="all at once: 15 bins, one with 30"),
        pytest.param(even(28, (100, 300)), 0.14, 0.25, id="lengths of 100 and 300; the last bin is empty"),
    ],
)
def test_variability(requests, arrivals, prompts):
    window = played(requests)
    assert window.arrival_cv2 == (None if arrivals is None else pytest.approx(arrivals, abs=0.01))
    assert window.prompt_cv2 == (None if prompts is None else pytest.approx(prompts, abs=0.01))


def test_a_worker_that_leaves_takes_no_rates_with_it():
    """Prometheus' rates are of series, and those of a pod that is gone end where they ended."""
    stays, leaves = played(even(20)), played(even(20), leaves_at=10.2)
    assert leaves.decode.tokens_rate == pytest.approx(stays.decode.tokens_rate)
    assert leaves.decode.busy is not None
    assert leaves.prefill.busy == pytest.approx(stays.prefill.busy)
