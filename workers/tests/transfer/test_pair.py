"""Two real engines, real sockets, one process: the pair's tokens are one worker's tokens, and every page comes back."""

import asyncio
import socket
import struct
from dataclasses import replace

import pytest

from tandem_worker.engine import Sampling, Shortage
from tandem_worker.transfer.handshake import Handshake, Side
from tandem_worker.transfer.peers import PeerError, parse_address
from tandem_worker.transfer.ticket import State
from tandem_worker.transfer.wire import (
    HEAD,
    AskTicket,
    Cancel,
    Chunk,
    Commit,
    First,
    Generation,
    Prefill,
    Quiet,
    SamplingFields,
    Span,
    Taken,
    TicketGranted,
    decode,
    encode,
    frame_head,
)
from workers.tests.prompts import token_ids
from workers.tests.transfer.kit import Heard, alone, eventually, pull, running, write_model

GREEDY = Sampling(max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("tiny") / "tiny")


@pytest.fixture
async def pair(model):
    async with running(model, "p0") as prefill, running(model, "d0") as decode:
        yield prefill, decode


def prompt(label, count):
    return token_ids(label, count, 256)


async def test_a_pair_says_what_one_worker_says(pair, model):
    prefill, decode = pair
    lengths = [1, 3, 4, 5, 31, 32, 33, 100, 200]
    family = prompt("family", 60)
    prompts = [prompt(f"n{n}", n) for n in lengths] + [family + prompt(f"tail{n}", n) for n in (1, 9, 40)]
    async with running(model, "one") as one:
        wanted = [await alone(one, f"a{n}", ids, GREEDY) for n, ids in enumerate(prompts)]
        got = [await pull(decode, prefill, f"r{n}", ids, GREEDY) for n, ids in enumerate(prompts)]
        for both in zip(wanted, got, strict=True):
            for heard in both:
                await heard.until(lambda heard: heard.over)
    assert [heard.failure for heard in got] == [None] * len(prompts)
    assert [heard.ids for heard in got] == [heard.ids for heard in wanted]
    await eventually(prefill.is_empty, "the prefill worker holds nothing")
    await eventually(decode.is_empty, "the decode worker holds nothing")


async def test_only_missing_pages_travel(pair):
    prefill, decode = pair
    page_bytes = 3 * 2 * 4 * 2 * 16 * 4  # layers, K and V, tokens, heads, size, fp32
    ids = prompt("once", 102)
    for request, pages in (("first", 26), ("again", 1)):
        heard = await pull(decode, prefill, request, ids, GREEDY)
        await heard.until(lambda heard: heard.over)
        assert heard.bytes == pages * page_bytes
        assert heard.granted == 26 - pages


@pytest.mark.parametrize(
    "sampling",
    [
        pytest.param(Sampling(max_tokens=20, temperature=0.9, top_p=0.8, seed=5, ignore_eos=True), id="seeded"),
        pytest.param(Sampling(max_tokens=6, ignore_eos=True, top_logprobs=3), id="logprobs"),
        pytest.param(Sampling(max_tokens=1), id="one token"),
        pytest.param(Sampling(max_tokens=40, stop_ids=tuple(range(0, 256, 4))), id="a stop token soon"),
        pytest.param(Sampling(max_tokens=40, stop_ids=tuple(range(256))[:64]), id="stop ids at the cap"),
    ],
)
async def test_sampling_is_the_same_in_a_pair(pair, sampling):
    prefill, decode = pair
    ids = prompt("sampling", 50)
    wanted = await alone(prefill, "alone", ids, sampling)
    await wanted.until(lambda heard: heard.over)
    got = await pull(decode, prefill, "pair", ids, sampling)
    await got.until(lambda heard: heard.over)
    assert (got.ids, got.tokens[-1].finish) == (wanted.ids, wanted.tokens[-1].finish)
    for one, other in zip(got.tokens, wanted.tokens, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert [n for n, _ in one.top] == [n for n, _ in other.top]
    await eventually(decode.is_empty, "the decode worker holds nothing")
    await eventually(prefill.is_empty, "the prefill worker holds nothing")


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(lambda heard: True, id="at once"),
        pytest.param(lambda heard: heard.granted is not None, id="with a ticket"),
        pytest.param(lambda heard: heard.bytes > 0, id="in the middle of the pages"),
        pytest.param(lambda heard: len(heard.tokens) >= 1, id="after the first token"),
        pytest.param(lambda heard: len(heard.tokens) >= 4, id="while it decodes"),
    ],
)
async def test_a_cancel_at_any_moment_leaves_nothing(pair, moment):
    prefill, decode = pair
    long = Sampling(max_tokens=200, ignore_eos=True)
    heard = await pull(decode, prefill, "r", prompt("cancel", 250), long)
    await heard.until(moment)
    decode.node.decode.cancel("r")
    decode.node.decode.cancel("r")
    await eventually(decode.is_empty, "the decode worker holds nothing")
    await eventually(prefill.is_empty, "the prefill worker holds nothing")
    assert heard.failure is None
    again = await pull(decode, prefill, "r2", prompt("cancel", 250), GREEDY)
    await again.until(lambda heard: heard.over)
    assert again.failure is None


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(lambda heard: True, id="at once"),
        pytest.param(lambda heard: heard.granted is not None, id="with a ticket"),
        pytest.param(lambda heard: heard.bytes > 0, id="in the middle of the pages"),
    ],
)
async def test_a_lost_connection_ends_the_request_and_leaves_nothing(pair, moment):
    prefill, decode = pair
    heard = await pull(decode, prefill, "r", prompt("lost", 400), GREEDY)
    await heard.until(moment)
    link = await decode.node.peers.get(("127.0.0.1", prefill.assembled.kv_port))
    link.abort("cut by the test")
    await heard.until(lambda heard: heard.over)
    assert heard.failure is None or heard.failure.code == "closed"
    await eventually(decode.is_empty, "the decode worker holds nothing")
    await eventually(prefill.is_empty, "the prefill worker holds nothing")
    again = await pull(decode, prefill, "r2", prompt("lost", 40), GREEDY)
    await again.until(lambda heard: heard.over)
    assert again.failure is None


@pytest.fixture
async def wide_pair(model):
    async with running(model, "p0") as prefill, running(model, "d0", connections=3) as decode:
        yield prefill, decode


async def test_pages_travel_over_several_connections(wide_pair):
    prefill, decode = wide_pair
    prompts = [prompt(f"wide{n}", n) for n in (1, 100, 480, 470)]
    wanted = [await alone(prefill, f"a{n}", ids, GREEDY) for n, ids in enumerate(prompts)]
    got = [await pull(decode, prefill, f"r{n}", ids, GREEDY) for n, ids in enumerate(prompts)]
    for heard in (*wanted, *got):
        await heard.until(lambda heard: heard.over)
    assert [heard.ids for heard in got] == [heard.ids for heard in wanted]
    first = await decode.node.peers.get(("127.0.0.1", prefill.assembled.kv_port))
    others = [link for link in prefill.node._listening._links if link._joins is not None]
    assert len(others) == 2
    assert {link._joins.nonce for link in others} == {first.nonce}
    for worker in wide_pair:
        await eventually(worker.is_empty, "nothing is held")


@pytest.mark.parametrize("which", [0, 1], ids=["the first", "another"])
async def test_connections_end_together(wide_pair, which):
    prefill, decode = wide_pair
    heard = await pull(decode, prefill, "r", prompt("together", 480), GREEDY)
    await heard.until(lambda heard: heard.bytes > 0)
    first = await decode.node.peers.get(("127.0.0.1", prefill.assembled.kv_port))
    links = [first, *first._others]
    links[which].abort("cut by the test")
    await heard.until(lambda heard: heard.over)
    await eventually(lambda: not any(link.alive for link in links), "all are gone")
    for worker in wide_pair:
        await eventually(worker.is_empty, "nothing is held")
    again = await pull(decode, prefill, "r2", prompt("together", 480), GREEDY)
    await again.until(lambda heard: heard.over)
    assert again.failure is None


async def test_nobody_joins_a_connection_that_is_not_there(pair):
    prefill, _ = pair
    reader, writer = await asyncio.open_connection("127.0.0.1", prefill.assembled.kv_port)
    hand = HandMade(reader, writer)
    handshake = Handshake(Side.OPENER, identity_of(prefill), bytes.fromhex("7" * 64), bytes(32))
    assert (await hand.talk(handshake)).peer
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await hand.read()
    writer.close()


def backends_of(worker):
    """Backend → 1 or 0, as /metrics has it."""
    lines = worker.service.metrics.exposition().decode().splitlines()
    found = [line.split('"') for line in lines if line.startswith("tandem_transfer_backend_info{")]
    return {parts[1]: float(parts[2].removeprefix("} ")) for parts in found}


async def test_what_need_not_travel_and_how_fast_the_rest_does_is_counted(pair):
    prefill, decode = pair
    for request in ("first", "again"):
        heard = await pull(decode, prefill, request, prompt("counted", 500), GREEDY)
        await heard.until(lambda heard: heard.over)
    page_bytes = 3 * 2 * 4 * 2 * 16 * 4
    assert value_of(decode, "tandem_kv_transfer_saved_bytes_total") == 124 * page_bytes
    metrics = prefill.service.metrics
    for rate in (1e9, 2e9):
        metrics.bandwidth(rate)
    assert value_of(prefill, "tandem_transfer_bandwidth_bytes_per_second") == 2e9


def value_of(worker, name):
    lines = worker.service.metrics.exposition().decode().splitlines()
    return next(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


async def test_no_room_means_later_not_never(model):
    """Six requests of which the decode worker has room for two at a time, and at first for none: all come through."""
    async with running(model, "p0") as prefill, running(model, "d0", kv_memory_mib=1) as decode:
        answers = []
        reserve = decode.engine.reserve

        def answer(*facts):
            answers.append(reserve(*facts) if len(answers) > 4 else Shortage(1, 0))
            return answers[-1]

        decode.engine.reserve = answer
        heard = [await pull(decode, prefill, f"r{n}", prompt(f"room{n}", 480), GREEDY) for n in range(6)]
        for one in heard:
            await one.until(lambda heard: heard.over)
        assert [(one.failure, one.tokens[-1].finish) for one in heard] == [(None, "length")] * 6
        assert len(answers) >= 5 + 6
        await eventually(decode.is_empty, "the decode worker holds nothing")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"key": bytes(32)}, "keys differ", id="key"),
        pytest.param({"dtype": "bfloat16"}, "dtype is float32 at .*bfloat16", id="dtype"),
        pytest.param({"page_tokens": 8}, "page_tokens is 4 at .*8", id="page size"),
        pytest.param({"served_name": "big"}, "model is tiny at .*big", id="model"),
    ],
)
async def test_workers_that_do_not_fit_refuse_each_other_at_once(model, changes, words):
    async with running(model, "p0") as prefill, running(model, "d0", **changes) as decode:
        with pytest.raises(PeerError, match=words):
            await decode.node.peers.get(("127.0.0.1", prefill.assembled.kv_port))


async def test_nobody_at_the_address(pair):
    _, decode = pair
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(PeerError, match="no connection"):
            await decode.node.peers.get(("127.0.0.1", free.getsockname()[1]))


@pytest.mark.parametrize("text", ["", "a:b", "prefill.example:8001", "1.2.3.4", "1.2.3.4:0", "1.2.3.4:70000", "[::1]"])
def test_only_addresses_are_addresses(text):
    with pytest.raises(ValueError, match=r"ip:port|valid port"):
        parse_address(text)


class HandMade:
    """A prefill worker's or a decode worker's end, driven frame by frame."""

    def __init__(self, reader, writer):
        self._reader, self._writer = reader, writer

    async def send(self, message, body=b""):
        self._writer.write(frame_head(encode(message), len(body)) + body)
        await self._writer.drain()

    async def read(self):
        async with asyncio.timeout(30):
            while True:
                header, body = HEAD.unpack(await self._reader.readexactly(HEAD.size))
                raw = await self._reader.readexactly(header)
                await self._reader.readexactly(body)
                if type(message := decode(raw)).__name__ not in {"Ping", "Taken", "Probe"}:
                    return message, raw

    async def shake(self, side, identity, key):
        return await self.talk(Handshake(side, identity, key))

    async def talk(self, handshake):
        for message in handshake.start().send:
            await self.send(message)
        while True:
            step = handshake.receive(*await self.read())
            for message in step.send:
                await self.send(message)
            if step.peer or step.refused:
                return step

    def close(self):
        self._writer.close()


def identity_of(worker):
    from tandem_worker.transfer.handshake import Identity

    info, settings = worker.engine.info, worker.settings
    return Identity(settings.served_name, info.config_hash, settings.dtype, settings.page_tokens, info.layers,
                    info.kv_heads, info.head_dim, "hand-made", 99, backend=settings.backend)  # fmt: skip


async def forge(decode):
    """A hand-made prefill worker that `decode` is connected to: (its end, the link, the server to close)."""
    ends = asyncio.Queue()
    server = await asyncio.start_server(lambda r, w: ends.put_nowait(HandMade(r, w)), "127.0.0.1", 0)
    link = asyncio.create_task(decode.node.peers.get(server.sockets[0].getsockname()))
    forged = await ends.get()
    assert (await forged.shake(Side.ANSWERER, identity_of(decode), bytes.fromhex("7" * 64))).peer
    return forged, await link, server


async def test_a_first_token_that_is_the_last_closes_the_ticket(pair):
    _, decode = pair
    forged, link, server = await forge(decode)
    heard = Heard()
    decode.node.decode.ask(link, "r", prompt("only one", 10), GREEDY, heard)
    await forged.read()
    await forged.send(AskTicket(request="r", pages=3))
    ticket, _ = await forged.read()
    await forged.send(First(generation=ticket.generation, token=9, logprob=-1.0, finish="stop"))
    assert (await forged.read())[0] == Cancel(request="r")
    assert (heard.ids, heard.failure) == ([9], None)
    assert decode.engine.stats().quarantined_pages == 3
    await forged.send(Quiet(request="r"))
    await eventually(decode.is_empty, "the writer's word frees the pages")
    forged.close()
    server.close()


async def test_stale_generations_and_foreign_tickets_change_nothing(pair, model):
    """A forged prefill worker that speaks of generations which are not its own is not heard."""
    prefill, decode = pair
    page_bytes = decode.node.decode._transfer.page_bytes
    forged, _, server = await forge(decode)

    heard = await pull(decode, prefill, "real", prompt("stale", 300), Sampling(max_tokens=60, ignore_eos=True))
    await heard.until(lambda heard: heard.granted is not None)
    ticket = decode.node.decode._by_request["real"].ticket.generation
    for generation in (ticket, Generation(ticket.incarnation, 10**6), Generation(1, ticket.counter)):
        await forged.send(First(generation=generation, token=1, logprob=0.0))
        await forged.send(Chunk(generation=generation, first_page=0, pages=1), bytes(page_bytes))
        await forged.send(Commit(generation=generation, pages=75))
    await eventually(lambda: decode.node.decode.stale >= 9, "nine stale messages")
    await heard.until(lambda heard: heard.over)
    wanted = await alone(prefill, "alone", prompt("stale", 300), Sampling(max_tokens=60, ignore_eos=True))
    await wanted.until(lambda heard: heard.over)
    assert heard.ids == wanted.ids
    forged.close()
    server.close()


async def test_pages_outside_of_the_ticket_end_the_connection(pair):
    _, decode = pair
    page_bytes = decode.node.decode._transfer.page_bytes
    forged, link, server = await forge(decode)
    heard = Heard()
    decode.node.decode.ask(link, "r", prompt("outside", 10), GREEDY, heard)
    asked, _ = await forged.read()
    assert isinstance(asked, Prefill)
    await forged.send(AskTicket(request="r", pages=3))
    ticket, _ = await forged.read()
    assert isinstance(ticket, TicketGranted)
    await forged.send(Chunk(generation=ticket.generation, first_page=2, pages=2), bytes(2 * page_bytes))
    await heard.until(lambda heard: heard.failure is not None)
    assert "outside" in heard.failure.reason
    await eventually(decode.is_empty, "the decode worker holds nothing")
    server.close()


async def test_prefills_of_a_wrong_size(pair):
    prefill, _ = pair
    reader, writer = await asyncio.open_connection("127.0.0.1", prefill.assembled.kv_port)
    hand = HandMade(reader, writer)
    assert (await hand.shake(Side.OPENER, identity_of(prefill), bytes.fromhex("7" * 64))).peer
    too_long = struct.pack("<600i", *[5] * 600)
    await hand.send(Prefill(request="r", sampling=SamplingFields(max_tokens=4), have_pages=0), too_long)
    answer, _ = await hand.read()
    assert (answer.request, answer.code) == ("r", "too_long")
    await hand.send(Prefill(request="r", sampling=SamplingFields(max_tokens=4), have_pages=0), b"odd")
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await hand.read()
    assert prefill.is_empty()


@pytest.mark.parametrize(
    ("message", "body_bytes"),
    [
        pytest.param(
            Prefill(request="r", sampling=SamplingFields(max_tokens=4), have_pages=0),
            2**24 + 4,
            id="prompt over the cap",
        ),
        pytest.param(Prefill(request="r", sampling=SamplingFields(max_tokens=4), have_pages=0), 0, id="no prompt"),
        pytest.param(Cancel(request="r"), 4, id="a body where none belongs"),
        pytest.param(Chunk(generation=Generation(1, 1), first_page=0, pages=1), 4, id="a page of four bytes"),
        pytest.param(
            Chunk(generation=Generation(1, 1), first_page=0, pages=1366), 1366 * 3072, id="longer than a frame"
        ),
        pytest.param(
            Chunk(generation=Generation(1, 1), first_page=0, pages=1, at=(Span(0, 3071),)), 0, id="a page less a byte"
        ),
        pytest.param(
            Chunk(generation=Generation(1, 1), first_page=0, pages=1, at=(Span(0, 3072),)), 3072, id="here and there"
        ),
    ],
)
async def test_a_body_is_judged_by_its_header_before_it_comes(pair, message, body_bytes):
    prefill, _ = pair
    reader, writer = await asyncio.open_connection("127.0.0.1", prefill.assembled.kv_port)
    hand = HandMade(reader, writer)
    assert (await hand.shake(Side.OPENER, identity_of(prefill), bytes.fromhex("7" * 64))).peer
    (link,) = prefill.node._listening._links
    header = encode(message)
    writer.write(HEAD.pack(len(header), body_bytes) + header)  # and not one byte of the body
    await eventually(lambda: not link.alive, "the connection ends")
    assert f"with a body of {body_bytes} B" in link._reason


async def test_nobody_takes_what_was_not_sent(pair):
    prefill, _ = pair
    reader, writer = await asyncio.open_connection("127.0.0.1", prefill.assembled.kv_port)
    hand = HandMade(reader, writer)
    assert (await hand.shake(Side.OPENER, identity_of(prefill), bytes.fromhex("7" * 64))).peer
    (link,) = prefill.node._listening._links
    await hand.send(Taken(generation=Generation(1, 1), first_page=0, size=1000))
    await eventually(lambda: not link.alive, "the connection ends")
    assert "are not under way" in link._reason


async def test_a_peer_that_lives_but_takes_nothing_is_ended(pair, monkeypatch):
    """It pings and reads, so it is not silent; its pages would be under way for ever."""
    monkeypatch.setattr("tandem_worker.transfer.link.PING_EVERY_S", 0.05)
    monkeypatch.setattr("tandem_worker.transfer.link.TAKEN_S", 0.2)
    monkeypatch.setattr("tandem_worker.transfer.link.SILENT_PINGS", 10**6)
    prefill, _ = pair
    reader, writer = await asyncio.open_connection("127.0.0.1", prefill.assembled.kv_port)
    hand = HandMade(reader, writer)
    assert (await hand.shake(Side.OPENER, identity_of(prefill), bytes.fromhex("7" * 64))).peer
    (link,) = prefill.node._listening._links
    await hand.send(
        Prefill(request="r", sampling=SamplingFields(max_tokens=4), have_pages=0), struct.pack("<9i", *[5] * 9)
    )
    await hand.read()
    await hand.send(TicketGranted(request="r", generation=Generation(1, 1), first_page=0, lease_ms=1))
    await eventually(lambda: not link.alive, "the connection ends")
    assert "no page was taken" in link._reason
    await eventually(prefill.is_empty, "the prefill worker holds nothing")


async def test_a_stranger_cannot_make_the_worker_allocate(pair):
    prefill, _ = pair
    reader, writer = await asyncio.open_connection("127.0.0.1", prefill.assembled.kv_port)
    writer.write(HEAD.pack(60_000, 0))
    async with asyncio.timeout(30):
        assert await reader.read() == b""
    writer.close()


async def test_an_old_lease_is_over_when_nothing_comes(model):
    """The decode worker's own clock ends a promise whose writer lives but says nothing."""
    async with running(model, "d0") as decode:
        decode.node.decode._lease_s = 0.3
        silent, link, server = await forge(decode)
        heard = Heard()
        decode.node.decode.ask(link, "r", prompt("silent", 10), GREEDY, heard)
        await silent.read()
        await silent.send(AskTicket(request="r", pages=3))
        await heard.until(lambda heard: heard.failure is not None)
        assert heard.failure.code == "timeout"
        assert decode.node.decode.count(State.QUARANTINED) == 1
        assert decode.engine.stats().quarantined_pages == 3
        silent.close()
        await eventually(decode.is_empty, "the connection's end is the fence")
        server.close()


@pytest.mark.parametrize("bound", ["time", "pages"])
async def test_a_writer_that_lives_but_never_says_that_it_stopped_is_cut_off(model, bound, caplog):
    async with running(model, "d0") as decode:
        mute, link, server = await forge(decode)
        heard = Heard()
        decode.node.decode.ask(link, "r", prompt("mute", 10), GREEDY, heard)
        await mute.read()
        await mute.send(AskTicket(request="r", pages=3))
        await mute.read()
        decode.node.decode.cancel("r")
        assert decode.engine.stats().quarantined_pages == 3
        assert link.alive
        if bound == "time":
            held = decode.node.decode._by_request["r"]
            held.ticket = replace(held.ticket, ends_at=0.0)
        else:
            decode.node.decode._quarantine_pages = 2
        await eventually(decode.is_empty, "its connection's end is the fence")
        assert not link.alive
        assert value_of(decode, "tandem_transfer_cut_off_total") == 1
        assert "closed for good" in caplog.text
        mute.close()
        server.close()
