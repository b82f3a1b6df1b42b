"""A link's rate before its first page: what is measured, what is believed, and what a hostile peer can do with it."""

import asyncio
import itertools

import pytest

from tandem_worker.engine import Sampling
from tandem_worker.transfer.base import Meter
from tandem_worker.transfer.handshake import Side
from tandem_worker.transfer.lanes import Lanes
from tandem_worker.transfer.probe import ANSWER_S, PROBE_BYTES, PROBES, Prober
from tandem_worker.transfer.rate import LEAST_BYTES, WEIGHT, Rate
from tandem_worker.transfer.tcp import Tcp
from tandem_worker.transfer.wire import Probe, Probed, Span, WireError, encode, frame_head
from workers.tests.transfer.ends import BESIDE
from workers.tests.transfer.forged import HandMade, forge, identity_of
from workers.tests.transfer.kit import eventually, pull, running

GREEDY = Sampling(max_tokens=4, ignore_eos=True)
BANDWIDTH = "tandem_transfer_bandwidth_bytes_per_second"


def value_of(worker, name):
    """A series' value; None: there is no such series."""
    lines = worker.service.metrics.exposition().decode().splitlines()
    return next((float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name)), None)


def prober_of(rate, clock, sent):
    """Of a connection that carries pages itself."""
    say = lambda *words: sent.append(words)  # noqa: E731
    return Prober(rate, clock, say, Meter(), Lanes(Tcp(), Meter(), say), lambda reason: None)


def answer(rate, seconds):
    """Two probes, of which D answers the first soon, the second after so many seconds."""
    clock, sent = iter((5.0, 5.5, 6.0, 6.0 + seconds)), []
    prober = prober_of(rate, lambda: next(clock), sent)
    prober.begin()
    for _ in range(PROBES):
        assert rate.bytes_per_second is None, "the first one finds the way"
        prober.hear(Probed())
    assert [(word, len(body)) for word, body in sent] == [(Probe(), PROBE_BYTES)] * PROBES


def test_a_probe_is_a_guess_that_the_first_real_sample_replaces():
    rate = Rate()
    answer(rate, 0.5)
    assert rate.bytes_per_second == PROBE_BYTES / 0.5
    for start in (10.0, 20.0):
        rate.sent(start)
        assert rate.taken(start + 1 / start, LEAST_BYTES, idle=True)
    assert rate.bytes_per_second == pytest.approx(LEAST_BYTES * (10 + WEIGHT * 10))
    assert not rate.guess(PROBE_BYTES, 1.0), "what pages have shown is better"
    assert rate.settle() == pytest.approx(0.15)
    assert rate.settle() == 0.0


@pytest.mark.parametrize(
    ("seconds", "known"), [(0.0, False), (0.1, True), (ANSWER_S, True), (ANSWER_S + 0.1, False)],
    ids=["in no time", "soon", "just in time", "too late"],
)  # fmt: skip
def test_an_answer_counts_within_its_time(seconds, known):
    rate = Rate()
    answer(rate, seconds)
    assert (rate.bytes_per_second is not None) is known


BEHIND, ON_LANE = Probe(), Probe(at=(Span(0, PROBE_BYTES),))


def test_each_word_is_said_twice_and_no_longer_than_it_may_be():
    sent = []
    prober = prober_of(Rate(), lambda: 0.0, sent)
    with pytest.raises(WireError, match="never sent"):
        prober.hear(Probed())
    assert [prober.admits(BEHIND, size) for size in (0, 1, PROBE_BYTES, PROBE_BYTES + 1)] == [False, True, True, False]
    assert [prober.admits(ON_LANE, size) for size in (0, 1)] == [True, False]
    assert not prober.admits(Probe(at=(Span(0, PROBE_BYTES + 1),)), 0)
    for _ in range(PROBES):
        prober.hear(BEHIND)
    assert sent == [(Probed(),)] * PROBES
    assert not prober.admits(BEHIND, 1)


def test_a_place_beside_a_connection_that_carries_pages_itself_is_refused():
    with pytest.raises(WireError, match="no such place"):
        prober_of(Rate(), lambda: 0.0, []).hear(ON_LANE)


async def test_a_new_pair_knows_its_bandwidth_and_what_it_expects(model):
    async with running(model, "p") as prefill, running(model, "d") as decode:
        assert value_of(prefill, BANDWIDTH) is None
        await decode.node.peers.get(("127.0.0.1", prefill.assembled.kv_port))
        await eventually(lambda: value_of(prefill, BANDWIDTH), "the bandwidth is known before any page travels")
        assert value_of(decode, BANDWIDTH) is None, "nothing is known of the other way"
        heard = await pull(decode, prefill, "r", list(range(3, 103)), GREEDY)
        await heard.until(lambda heard: heard.over)
        page_bytes = decode.node.decode._transfer.page_bytes
        assert value_of(prefill, "tandem_kv_transfer_expected_bytes_total") == 25 * page_bytes == heard.bytes
        assert value_of(prefill, "tandem_kv_transfer_expected_seconds_total") > 0
        assert value_of(prefill, "tandem_kv_transfer_busy_seconds_total") > 0


@pytest.mark.parametrize("backend", BESIDE)
async def test_what_is_read_in_place_is_measured_where_it_lies(model, backend):
    async with running(model, "p", backend=backend) as prefill, running(model, "d", backend=backend) as decode:
        link = await decode.node.peers.get(("127.0.0.1", prefill.assembled.kv_port))
        await eventually(lambda: value_of(prefill, BANDWIDTH), "the bandwidth is known before any page travels")
        assert link.backend == backend
        assert decode.node.decode.stale == 0
        (far,) = prefill.node._listening._links
        assert far.bandwidth == value_of(prefill, BANDWIDTH)
        heard = await pull(decode, prefill, "r", [5] * 40, GREEDY)
        await heard.until(lambda heard: heard.over)
        assert far.bandwidth == value_of(prefill, BANDWIDTH), "10 pages are too little to say"
        for worker in (prefill, decode):
            await eventually(worker.is_empty, "nothing is held")


async def test_without_a_common_way_the_one_that_is_used_is_measured(model, caplog):
    async with running(model, "p", backend="shm") as prefill, running(model, "d", backend="shm") as decode:
        prefill.node._backend._door.path.unlink()
        link = await decode.node.peers.get(("127.0.0.1", prefill.assembled.kv_port))
        await eventually(lambda: value_of(prefill, BANDWIDTH), "the bandwidth is known")
        assert link.backend == "tcp"


@pytest.mark.parametrize(
    "sizes", [[PROBE_BYTES + 1], [0], [1, 1, 1], [2**40]], ids=["over the cap", "empty", "a third one", "huge"]
)
async def test_a_prefill_worker_cannot_probe_for_ever(model, sizes):
    async with running(model, "d") as decode:
        forged, link, server = await forge(decode)
        for size in sizes:
            await forged.send(Probe(), bytes(size)) if size < 2**30 else forged._writer.write(
                frame_head(encode(Probe()), 2**27)
            )
        await eventually(lambda: not link.alive, "the connection ends")
        forged.close()
        server.close()


@pytest.mark.parametrize("message", [Probe(), Probed()], ids=["it probes itself", "it answers what was not asked"])
async def test_a_decode_worker_says_no_more_than_one_answer(model, message):
    async with running(model, "p") as prefill:
        hand = HandMade(*await asyncio.open_connection("127.0.0.1", prefill.assembled.kv_port))
        assert (await hand.shake(Side.OPENER, identity_of(prefill), bytes.fromhex("7" * 64))).peer
        (link,) = prefill.node._listening._links
        for _ in itertools.repeat(None, 2):
            await hand.send(message)
        await eventually(lambda: not link.alive, "the connection ends")
        hand.close()
