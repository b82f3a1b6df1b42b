"""A proven peer that says what no worker would: it is refused, or its connection ends, and no page is lost."""

import asyncio
import struct
from dataclasses import replace

import pytest

from tandem_worker.engine import Sampling
from tandem_worker.transfer.handshake import Handshake, Side
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
    encode,
)
from workers.tests.transfer.forged import HandMade, forge, identity_of
from workers.tests.transfer.kit import (
    GREEDY,
    Heard,
    alone,
    eventually,
    prompt,
    pull,
    running,
    value_of,
)


async def test_nobody_joins_a_connection_that_is_not_there(pair):
    prefill, _ = pair
    reader, writer = await asyncio.open_connection("127.0.0.1", prefill.assembled.kv_port)
    hand = HandMade(reader, writer)
    handshake = Handshake(Side.OPENER, identity_of(prefill), bytes.fromhex("7" * 64), bytes(32))
    assert (await hand.talk(handshake)).peer
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await hand.read()
    writer.close()


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
    monkeypatch.setattr("tandem_worker.transfer.signs.PING_EVERY_S", 0.05)
    monkeypatch.setattr("tandem_worker.transfer.signs.TAKEN_S", 0.2)
    monkeypatch.setattr("tandem_worker.transfer.signs.SILENT_PINGS", 10**6)
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
