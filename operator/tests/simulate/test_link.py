"""Transfers that share NICs."""

from dataclasses import replace

import pytest

from tandem_operator.simulate.link import Link, Network
from tandem_operator.simulate.worker import Request
from tests.simulate.made import TRUTH, cluster_of

TOKEN_S = 0.01  # of a link alone


def arrivals(flows):
    """Ends of tails [(source, target, tokens, start)] over links by name, in the order of the list."""
    links = {name: Link(TOKEN_S) for flow in flows for name in flow[:2]}
    due, found = {}, {}
    network = Network(due.__setitem__)
    waiting = sorted(range(len(flows)), key=lambda n: flows[n][3])
    while waiting or due:
        flow = min(due, key=due.get) if due else None
        if waiting and (flow is None or flows[waiting[0]][3] <= due[flow]):
            number = waiting.pop(0)
            source, target, tokens, start = flows[number]
            network.start_tail(number, (links[source], links[target]), tokens, start)
        else:
            found[flow.request] = due.pop(flow)
            network.close(flow, found[flow.request])
    return [found[n] for n in range(len(flows))]


@pytest.mark.parametrize(
    ("flows", "ends"),
    [
        pytest.param([("a", "x", 100, 0.0)], [1.0], id="alone"),
        pytest.param([("a", "x", 100, 0.0), ("a", "y", 100, 0.0)], [2.0, 2.0], id="two leave one link: twice as long"),
        pytest.param([("a", "x", 100, 0.0), ("b", "x", 100, 0.0)], [2.0, 2.0], id="two meet at one link"),
        pytest.param([("a", "x", 100, 0.0), ("b", "y", 100, 0.0)], [1.0, 1.0], id="strangers"),
        pytest.param([("a", "x", 100, 0.0), ("a", "y", 100, 0.5)], [1.5, 2.0], id="half way the second comes"),
        pytest.param([("a", "x", 50, 0.0), ("a", "y", 100, 0.0)], [1.0, 1.5], id="the short one leaves its part"),
    ],
)
def test_equal_parts(flows, ends):
    assert arrivals(flows) == pytest.approx(ends, rel=1e-9)


def test_a_stream_takes_what_it_computes_and_a_tail_the_rest():
    a, x, y = Link(TOKEN_S), Link(TOKEN_S), Link(TOKEN_S)
    due = {}
    network = Network(lambda flow, time: due.__setitem__(flow.request, time))
    stream = network.stream("stream", (a, x), 100, 5.0, 0.0)  # 20 of 100 tokens/s
    network.start_tail("tail", (a, y), 160, 0.0)
    assert due["tail"] == pytest.approx(2.0)  # 80 tokens/s
    network.tail(stream, 30, 5.0)
    assert stream.left == pytest.approx(30)  # all before has gone beside the compute


@pytest.mark.parametrize(
    ("token_s", "waited_s"),
    [
        pytest.param(0.001, 16 * 0.001, id="fast link: only the last chunk is waited for"),
        pytest.param(0.1, None, id="slow link: most of the prompt is still on its way"),
    ],
)
def test_chunks_travel_beside_the_compute(token_s, waited_s):
    """80 tokens in chunks of 32: the last has 16."""
    truth = replace(TRUTH, transfer_token_s=token_s, prompt_token_s=0.005)
    made = cluster_of([Request(0.0, 80, 2)], truth=truth)
    made.run_until(100)
    (request,) = made.finished
    step, waited = truth.step_s(1, 81), request.tpot_s - truth.step_s(1, 81)
    assert waited == pytest.approx(waited_s if waited_s else 80 * token_s - compute_s(truth), rel=1e-6)
    assert step > 0


def compute_s(truth):
    """The part of the transfer that fits beside the compute: the whole prefill, at the link's rate."""
    return truth.prompt_base_s + 3 * truth.chunk_base_s + 80 * truth.prompt_token_s + 80**2 * truth.prompt_pair_s


def test_only_missing_blocks_travel():
    """64 of 80 tokens are on the decode worker from the first request."""
    truth = replace(TRUTH, transfer_token_s=1.0, prompt_token_s=0.0)
    hashes = tuple(range(10))
    made = cluster_of([Request(0.0, 80, 2, hashes), Request(500.0, 80, 2, (*hashes[:8], 90, 91))], truth=truth)
    made.run_until(1000)
    first, second = made.finished
    assert second.tpot_s - truth.step_s(1, 81) == pytest.approx(16.0, rel=0.01)
    assert first.tpot_s - truth.step_s(1, 81) == pytest.approx(80.0, rel=0.01)
