"""Two workers that do not fit say so at once, with both values; nobody without the key gets in."""

import asyncio
import itertools
from dataclasses import replace

import msgspec
import pytest

from tandem_worker.transfer.handshake import Handshake, Identity, Side, make_mac, parse_key
from tandem_worker.transfer.peers import PeerError
from tandem_worker.transfer.wire import PROTOCOL_VERSION, Auth, Cancel, Hello, Ping, Refuse, encode, frame_head
from workers.tests.transfer.forged import HandMade, identity_of
from workers.tests.transfer.kit import running

KEY = bytes(range(32))
ONE = Identity("smollm2", "abc", "bfloat16", 16, 30, 3, 64, "decode-0", 1)
OTHER = replace(ONE, worker="prefill-0", incarnation=2)


def talk(opener: Handshake, answerer: Handshake, tamper=lambda message: message):
    """Carry messages until both are done; returns (opener's last step, answerer's last step)."""
    last = {Side.OPENER: opener.start(), Side.ANSWERER: answerer.start()}
    flight = [(Side.ANSWERER, message) for message in last[Side.OPENER].send]
    for _ in range(10):
        if not flight:
            break
        side, message = flight.pop(0)
        message = tamper(message)
        step = (opener if side is Side.OPENER else answerer).receive(message, encode(message))
        last[side] = step
        back = Side.ANSWERER if side is Side.OPENER else Side.OPENER
        flight += [(back, reply) for reply in step.send]
    return last[Side.OPENER], last[Side.ANSWERER]


def test_equal_workers_know_each_other_afterwards():
    one, other = talk(Handshake(Side.OPENER, ONE, KEY), Handshake(Side.ANSWERER, OTHER, KEY))
    assert (one.peer.worker, one.peer.incarnation) == ("prefill-0", 2)
    assert (other.peer.worker, other.peer.incarnation) == ("decode-0", 1)
    assert not one.refused
    assert not other.refused


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"model": "llama"}, ["model", "smollm2", "llama"], id="model"),
        pytest.param({"config_hash": "def"}, ["config_hash", "abc", "def"], id="config"),
        pytest.param({"dtype": "float32"}, ["dtype", "bfloat16", "float32"], id="dtype"),
        pytest.param({"page_tokens": 32}, ["page_tokens", "16", "32"], id="page size"),
        pytest.param({"layers": 31}, ["layers", "30", "31"], id="layers"),
        pytest.param({"kv_heads": 1}, ["kv_heads", "3", "1"], id="kv heads"),
        pytest.param({"head_dim": 128}, ["head_dim", "64", "128"], id="head dim"),
        pytest.param({"revision": "1605565"}, ["revision", "1605565"], id="revision"),
        pytest.param({"layout": "layers,pages"}, ["layout", "pages,shares", "layers,pages"], id="layout"),
        pytest.param({"tensor": 2}, ["tensor", "1", "2", "3 KV heads"], id="ranks that cannot share the heads"),
        pytest.param({"backend": "shm"}, ["backend", "tcp", "shm"], id="backend"),
    ],
)
def test_a_difference_is_refused_with_both_values(changes, words):
    one, other = talk(Handshake(Side.OPENER, ONE, KEY), Handshake(Side.ANSWERER, replace(OTHER, **changes), KEY))
    for step in (one, other):
        assert step.peer is None
        assert all(word in step.refused for word in words)


@pytest.mark.parametrize("ranks", itertools.product((1, 2, 4), repeat=2))
@pytest.mark.parametrize("kv_heads", [1, 2, 4, 8])
@pytest.mark.parametrize("backend", ["tcp", "shm"])
def test_ranks_that_share_the_heads_evenly_fit_where_pages_can_be_resharded(backend, kv_heads, ranks):
    one, other = (
        replace(who, tensor=n, kv_heads=kv_heads, backend=backend) for who, n in zip((ONE, OTHER), ranks, strict=True)
    )
    steps = talk(Handshake(Side.OPENER, one, KEY), Handshake(Side.ANSWERER, other, KEY))
    if backend == "tcp" or min(ranks[0], kv_heads) == min(ranks[1], kv_heads):
        assert not any(step.refused for step in steps)
    else:
        assert all(word in step.refused for step in steps for word in ("shm", "use tcp", *map(str, ranks)))


def test_another_version_is_refused_with_both_values():
    def aged(message):
        return (
            Hello(**{**{f: getattr(message, f) for f in message.__struct_fields__}, "version": 99})
            if isinstance(message, Hello)
            else message
        )

    one, other = talk(Handshake(Side.OPENER, ONE, KEY), Handshake(Side.ANSWERER, OTHER, KEY), aged)
    assert "version" in one.refused
    assert "99" in one.refused
    assert str(PROTOCOL_VERSION) in one.refused
    assert other.peer is None


def test_another_key_is_refused_and_says_nothing_of_itself():
    one, other = talk(Handshake(Side.OPENER, ONE, KEY), Handshake(Side.ANSWERER, OTHER, bytes(32)))
    assert "keys differ" in one.refused
    assert "keys differ" in other.refused
    assert one.peer is None
    assert other.peer is None


def test_a_mac_cannot_be_played_back_to_its_maker():
    opener, answerer = Handshake(Side.OPENER, ONE, KEY), Handshake(Side.ANSWERER, OTHER, KEY)
    (hello,) = opener.start().send
    (back,) = answerer.receive(hello, encode(hello)).send
    (auth,) = opener.receive(back, encode(back)).send
    assert "keys differ" in opener.receive(auth, encode(auth)).refused


def test_a_recorded_handshake_is_worth_nothing():
    """The answerer's nonce is fresh: yesterday's mac does not fit."""
    opener, answerer = Handshake(Side.OPENER, ONE, KEY), Handshake(Side.ANSWERER, OTHER, KEY)
    (hello,) = opener.start().send
    (back,) = answerer.receive(hello, encode(hello)).send
    (auth,) = opener.receive(back, encode(back)).send
    later = Handshake(Side.ANSWERER, OTHER, KEY)
    later.receive(hello, encode(hello))
    assert "keys differ" in later.receive(auth, encode(auth)).refused


@pytest.mark.parametrize("message", [Ping(), Cancel(request="r"), Auth(mac=bytes(32))], ids=lambda m: type(m).__name__)
def test_anything_before_hello_is_refused(message):
    step = Handshake(Side.ANSWERER, OTHER, KEY).receive(message, encode(message))
    assert step.refused
    assert isinstance(step.send[0], Refuse)


def test_the_direction_is_part_of_the_mac():
    assert make_mac(KEY, Side.OPENER, b"a", b"b") != make_mac(KEY, Side.ANSWERER, b"a", b"b")
    assert make_mac(KEY, Side.OPENER, b"ab", b"c") != make_mac(KEY, Side.OPENER, b"a", b"bc")


@pytest.mark.parametrize(
    ("text", "words"),
    [("xyz", "hexadecimal"), ("", "0 bytes"), ("00" * 8, "8 bytes")],
    ids=["no hex", "empty", "short"],
)
def test_a_bad_key_says_what_to_do(text, words):
    with pytest.raises(ValueError, match=words):
        parse_key(text)


def without_backend(message):
    """A hello of another version, which lacks what this one asks for."""
    fields = msgspec.msgpack.decode(encode(message))
    del fields["backend"]
    return msgspec.msgpack.encode({**fields, "version": 99})


@pytest.mark.parametrize("side", Side)
async def test_a_hello_of_another_version_is_refused_with_both_values_whatever_it_lacks(model, side):
    """Over a connection: the peer, whichever side it is, hears which two versions these are, and so does the log."""
    async with running(model, "w") as worker:
        heard = asyncio.get_running_loop().create_future()

        async def talk(reader, writer):
            end = HandMade(reader, writer)
            if side is Side.ANSWERER:
                await end.read()
            header = without_backend(identity_of(worker).hello())
            writer.write(frame_head(header))
            heard.set_result((await end.read())[0])
            writer.close()

        if side is Side.OPENER:
            await talk(*await asyncio.open_connection("127.0.0.1", worker.assembled.kv_port))
        else:
            async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
                with pytest.raises(PeerError, match=f"version is {PROTOCOL_VERSION} at this worker, 99 at the other"):
                    await worker.node.peers.get(server.sockets[0].getsockname())
        refuse = await heard
        assert isinstance(refuse, Refuse)
        assert refuse.differs == {"version": (str(PROTOCOL_VERSION), "99")}
