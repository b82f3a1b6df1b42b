"""Connections that a decode worker opens: all of them, or none is left."""

import asyncio

import pytest

from tandem_worker.transfer import peers
from tandem_worker.transfer.handshake import RefusedError
from tandem_worker.transfer.peers import PeerError, Peers
from workers.tests.transfer.kit import eventually


class Opened:
    """A connection that was opened; `outcome` of its handshake."""

    def __init__(self, outcome):
        self.ready = asyncio.get_running_loop().create_future()
        self.reason = ""
        if isinstance(outcome, Exception):
            self.ready.set_exception(outcome)
            self.reason = str(outcome)  # it ends by itself
        elif outcome is not None:
            self.ready.set_result(outcome)

    @property
    def alive(self):
        return not self.reason

    def abort(self, reason):
        self.reason = reason


class Terms:
    connections = 2


@pytest.mark.parametrize(
    ("outcomes", "words"),
    [
        pytest.param(["peer", RefusedError("the transfer keys differ")], "keys differ", id="the second is refused"),
        pytest.param(["peer", ConnectionError("reset")], "reset", id="the second breaks"),
        pytest.param(["peer", None], "timed out", id="the second says nothing"),
        pytest.param([RefusedError("the two workers do not fit")], "do not fit", id="the first is refused"),
    ],
)
async def test_where_one_connection_cannot_be_had_none_is_left(monkeypatch, outcomes, words):
    opened, coming = [], iter(outcomes)

    async def connect(make, *address, local_addr):
        opened.append(Opened(next(coming)))
        return None, opened[-1]

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", connect, raising=False)
    monkeypatch.setattr(peers, "HANDSHAKE_S", 0.05)
    with pytest.raises(PeerError, match=words):
        await Peers(Terms(), None).get(("127.0.0.1", 1))
    assert len(opened) == len(outcomes)
    assert not any(one.alive for one in opened)


async def test_a_connection_that_nobody_waits_for_any_more_is_not_left(monkeypatch):
    opened = []

    async def connect(make, *address, local_addr):
        opened.append(Opened("peer" if not opened else None))
        return None, opened[-1]

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", connect, raising=False)
    ours = Peers(Terms(), None)
    asking = asyncio.create_task(ours.get(("127.0.0.1", 1)))
    await eventually(lambda: len(opened) == 2, "the second is being opened")
    await ours.close()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert not any(one.alive for one in opened)
