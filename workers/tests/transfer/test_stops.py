"""A worker that ends does not wait for its peers: not for `taken`, not for one that does not read, nor a library."""

import asyncio

import pytest

from tandem_worker.transfer import peers
from tandem_worker.transfer.backends import NAMES
from workers.tests.transfer.ends import BESIDE
from workers.tests.transfer.gate import Gate, Hold
from workers.tests.transfer.kit import GREEDY, Heard, eventually, prompt, running
from workers.tests.transfer.test_lanes import never_ending

WITHIN_S = 15.0  # two waits of a second each, on a machine that may be busy


async def asked(decode, address):
    """A request whose pages come by the decode worker's backend; (the connection, who listens)."""
    link = await decode.node.peers.get(address)
    await eventually(lambda: link.backend == decode.settings.backend, "they agree on how pages travel")
    heard = Heard()
    decode.node.decode.ask(link, "r", prompt("stops", 200), GREEDY, heard)
    return link, heard


async def stopped(worker):
    async with asyncio.timeout(WITHIN_S):
        await worker.node.stop()


@pytest.mark.parametrize("first", ["p", "d"])
@pytest.mark.parametrize("backend", NAMES)
async def test_pages_that_nobody_says_are_taken_hold_up_nobody(model, backend, first):
    async with (
        running(model, "p0", backend=backend) as prefill,
        running(model, "d0", backend=backend) as decode,
        Gate("127.0.0.1", prefill.assembled.kv_port, Hold("D", "taken")) as gate,
    ):
        link, _ = await asked(decode, gate.address[:2])
        await eventually(lambda: ("D", "taken") in gate.seen, "pages are taken, and it is not heard")
        assert prefill.node.pushing
        for worker in (prefill, decode) if first == "p" else (decode, prefill):
            await stopped(worker)
        assert link.over
        for worker in (prefill, decode):
            await eventually(worker.is_empty, "nothing is held", WITHIN_S)


@pytest.mark.parametrize("backend", BESIDE)
async def test_a_read_that_never_ends_is_waited_for_in_vain_but_not_for_long(model, backend, caplog):
    async with running(model, "p0", backend=backend) as prefill, running(model, "d0", backend=backend) as decode:
        link = await decode.node.peers.get(("127.0.0.1", prefill.assembled.kv_port))
        await eventually(lambda: link.backend == backend, "they agree on how pages travel")
        reads = never_ending(link._lanes.lane)
        _, heard = await asked(decode, ("127.0.0.1", prefill.assembled.kv_port))
        await eventually(lambda: reads, "a read is under way")
        await stopped(decode)
        assert heard.failure.code == "closed"
        assert not link.over
        assert "1 connections still read pages" in caplog.text
        assert decode.engine.stats().quarantined_pages > 0
        await stopped(prefill)


class Stuck:
    """A connection that ends by `close` (1), by `abort` alone (2), or by nothing (3)."""

    def __init__(self, ends_by):
        self.ends_by, self.calls = ends_by, []

    @property
    def over(self):
        return self.ends_by <= len(self.calls)

    def close(self, reason):
        self.calls.append("close")

    def abort(self, reason):
        self.calls.append("abort")


@pytest.mark.parametrize(("ends_by", "said"), [(1, False), (2, False), (3, True)])
async def test_a_peer_that_does_not_read_what_was_written_is_cut_off(monkeypatch, caplog, ends_by, said):
    monkeypatch.setattr(peers, "STOP_S", 0.05)
    link = Stuck(ends_by)
    await peers.ended([link])
    assert link.calls == ["close", "abort"]
    assert ("still read pages" in caplog.text) is said
