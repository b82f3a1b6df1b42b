"""Small clusters and loads for the simulator's tests."""

from math import inf

from hypothesis import strategies as st

from tandem_operator.plan.facts import Role
from tandem_operator.simulate.cluster import Cluster
from tandem_operator.simulate.request import Path
from tandem_operator.simulate.worker import Engine, Request, SimWorker, Truth

# Every cost counts, and no two of them are multiples of each other.
TRUTH = Truth(
    prompt_token_s=0.00031,
    step_base_s=0.0171,
    step_slope_s=0.00113,
    prompt_base_s=0.0127,
    prompt_pair_s=3.7e-7,
    chunk_base_s=0.0041,
    step_context_s=1.3e-6,
)
ENGINE = Engine(chunk_tokens=32, page_tokens=4, block_tokens=8)


def cluster_of(
    requests, prefill=1, decode=1, both=0, truth=TRUTH, engine=ENGINE, max_batch=8, kind=SimWorker, **options
):
    """A cluster of equal workers, all ready."""
    made = Cluster(iter(requests), **options)
    for role, count in ((Role.PREFILL, prefill), (Role.DECODE, decode), (Role.BOTH, both)):
        made.workers += [kind(f"{role}-{n}", role, role, truth, max_batch, 0.0, engine) for n in range(count)]
    return made


def ends(cluster):
    """(arrived, TTFT, TPOT, end) of all, in the order of arrival; -1 for what there is not."""
    known = [(r.arrived, r.ttft_s, r.tpot_s, r.done_at) for r in cluster.finished]
    return sorted(tuple(-1.0 if v is None else v for v in one) for one in known)


def check_conservation(cluster, offered):
    """Every request ended exactly once, and every page, seat and link is free again."""
    assert sorted(r.arrived for r in cluster.finished) == sorted(offered)
    for worker in (*cluster.workers, *cluster.gone):
        assert worker.memory.own == 0
        assert worker.memory.cache.held == 0
        assert worker.batch.size == worker.batch.context == worker.load == worker.assigned == worker.expected == 0
        assert not worker.link.flows
        assert worker.link.streaming == 0
        assert worker.gone_at is not None or worker.until == inf
        assert not any(worker.batch._crossing)


@st.composite
def loads(draw, most=12, prompt=90, output=40, blocks=True, gap=0.0):
    """Requests in the order of arrival; some share the beginning of their prompts."""
    at, made = 0.0, []
    for number in range(draw(st.integers(1, most))):
        at += draw(st.floats(gap, 0.4))
        tokens = draw(st.integers(1, prompt))
        shared = draw(st.integers(0, tokens // ENGINE.block_tokens)) if blocks else 0
        own = range(shared, tokens // ENGINE.block_tokens) if blocks else ()
        hashes = (*range(shared), *(1000 * (number + 1) + n for n in own))
        made.append((at, tokens, draw(st.integers(1, output)), hashes))
    return made


def requests(load):
    """Fresh requests of a load: a simulation uses them up."""
    return [Request(*one) for one in load]


def refused(cluster):
    """How many were too long for every worker."""
    return sum(r.path is Path.REFUSED for r in cluster.finished)
