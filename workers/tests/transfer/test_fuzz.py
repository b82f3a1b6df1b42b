"""Whatever comes to the port: it is refused, memory stays flat, and the next request is served."""

import asyncio
import contextlib
import random
import tracemalloc
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_worker.engine import Sampling
from tandem_worker.transfer.handshake import Side
from tandem_worker.transfer.wire import (
    HEAD,
    MAX_BODY,
    MAX_HEADER,
    AskTicket,
    FrameReader,
    WireError,
    encode,
    frame_head,
)
from workers.tests.prompts import token_ids
from workers.tests.transfer.forged import HandMade, forge, identity_of
from workers.tests.transfer.kit import KEY, Heard, alone, eventually, pull, running

GREEDY = Sampling(max_tokens=4, ignore_eos=True)
FLAT_MIB = 48  # a body over the cap would be 256; what a run of Python costs is a few
WITHIN_S = 30.0
HUGE = (2**63 - 1, 2**64 - 1, 2**31 - 1, 2**31, -1, 0, 1)


@pytest.fixture(params=["tcp", "shm"])
async def worker(model, request):
    async with running(model, "w0", backend=request.param) as worker:
        yield worker


def resident_mib():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


@contextlib.contextmanager
def flat_memory():
    """Nor may a peak come between: memory that is set aside and not yet touched, or given back, is no resident one."""
    before = resident_mib()
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] / 2**20 < FLAT_MIB
    finally:
        tracemalloc.stop()
    assert resident_mib() - before < FLAT_MIB


def test_what_is_set_aside_and_given_back_is_not_flat():
    with pytest.raises(AssertionError), flat_memory():
        bytearray(MAX_BODY)


async def throw(worker, data):
    """Send the bytes and wait until the worker hangs up, or has had time to."""
    reader, writer = await asyncio.open_connection("127.0.0.1", worker.assembled.kv_port)
    with contextlib.suppress(OSError):
        writer.write(data)
        writer.write_eof()
        async with asyncio.timeout(WITHIN_S):
            await reader.read()
    writer.close()


async def serves(worker):
    """A pair of this worker and itself: both its sides still work."""
    ids = token_ids("fuzz", 40, 256)
    heard = await pull(worker, worker, "after", ids, GREEDY)
    wanted = await alone(worker, "alone", ids, GREEDY)
    for one in (heard, wanted):
        await one.until(lambda one: one.over, WITHIN_S)
    assert heard.ids == wanted.ids
    await eventually(worker.is_empty, "it holds nothing", WITHIN_S)


async def test_random_bytes_and_oversized_lengths(worker):
    dice = random.Random(7)
    lengths = [
        (0, 0),
        (1, 0),
        (MAX_HEADER + 1, 0),
        (2**32 - 1, 2**64 - 1),
        (40, MAX_BODY),
        (40, MAX_BODY + 1),
        (4097, 0),
    ]
    with flat_memory():
        for _ in range(60):
            await throw(worker, dice.randbytes(dice.randrange(1, 6000)))
        for header, body in lengths:
            await throw(worker, HEAD.pack(header, body) + dice.randbytes(5000))
    await serves(worker)


async def test_a_hello_that_is_cut_anywhere(worker):
    hello = frame_head(encode(identity_of(worker).hello()))
    with flat_memory():
        for end in range(0, len(hello), 9):
            await throw(worker, hello[:end])
    await serves(worker)


def hostile(dice, depth=0):
    """A value of any type, often at a limit."""
    kinds = [
        lambda: dice.choice(HUGE),
        lambda: dice.choice([0.0, -1.0, 1e308, float("nan"), float("inf")]),
        lambda: "x" * dice.choice([0, 1, 200, 201, 513, 20_000]),
        lambda: dice.randbytes(dice.choice([0, 31, 32, 33, 64, 65])),
        lambda: None,
        lambda: dice.random() < 0.5,
    ]
    if depth < 2:
        kinds += [lambda: [hostile(dice, depth + 1) for _ in range(dice.choice([0, 1, 2, 3, 65]))]]
        kinds += [lambda: {str(n): hostile(dice, depth + 1) for n in range(dice.choice([0, 1, 17]))}]
    return dice.choice(kinds)()


FIELDS = ["request", "sampling", "have_pages", "pages", "generation", "first_page", "lease_ms", "retry_ms", "reason",
          "token", "logprob", "top", "finish", "at", "size", "backend", "where", "code", "differs", "mac"]  # fmt: skip
TAGS = ["hello", "auth", "refuse", "ping", "prefill", "ticket?", "ticket", "noticket", "first", "chunk", "commit",
        "taken", "cancel", "quiet", "failed", "lend", "borrowed", "probe", "probed", "waits", "nonsense"]  # fmt: skip
GOOD = {"request": "r", "sampling": [4], "have_pages": 0, "pages": 3, "generation": [1, 1], "first_page": 0,
        "lease_ms": 1, "size": 1, "at": -1, "token": 5, "logprob": 0.0, "backend": "shm", "where": "/tmp/none",
        "mac": bytes(32)}  # fmt: skip


def hostile_frame(dice, **known):
    """A header that may be one of ours, with some fields out of order; and any body length, seldom with a body."""
    header = {"m": dice.choice(TAGS), **GOOD, **known}
    for field in dice.sample(FIELDS, dice.randrange(0, 4)):
        header[field] = hostile(dice)
    raw = msgspec.msgpack.encode(header)
    body = dice.choice([0, 0, 0, 4, 3072, 3 * 3072, 2**24 + 4, MAX_BODY])
    return HEAD.pack(len(raw), body) + raw + dice.randbytes(min(body, 3 * 3072))


async def test_hostile_values_of_a_proven_decode_worker(worker):
    dice = random.Random(11)
    with flat_memory():
        for _ in range(60):
            reader, writer = await asyncio.open_connection("127.0.0.1", worker.assembled.kv_port)
            hand = HandMade(reader, writer)
            assert (await hand.shake(Side.OPENER, identity_of(worker), bytes.fromhex(KEY))).peer
            with contextlib.suppress(OSError):
                for _ in range(3):
                    writer.write(hostile_frame(dice))
                await writer.drain()
            writer.close()
    await serves(worker)


async def test_hostile_values_of_a_proven_prefill_worker(worker):
    dice = random.Random(13)
    with flat_memory():
        for _ in range(25):
            forged, link, server = await forge(worker)
            heard = Heard()
            worker.node.decode.ask(link, "r", token_ids("hostile", 10, 256), GREEDY, heard)
            await forged.read()
            await forged.send(AskTicket(request="r", pages=3))
            ticket, _ = await forged.read()
            generation = [ticket.generation.incarnation, ticket.generation.counter]
            with contextlib.suppress(OSError):
                for _ in range(3):
                    forged._writer.write(hostile_frame(dice, generation=generation))
                await forged._writer.drain()
            forged.close()
            server.close()
            await eventually(lambda: not worker.node.decode._by_request, "nothing is left of it", WITHIN_S)
    await serves(worker)


@settings(max_examples=150, deadline=None)
@given(data=st.binary(max_size=400), size=st.integers(1, 60))
def test_a_reader_never_sets_more_aside_than_what_was_admitted(data, size):
    def admit(message, body_bytes):
        if body_bytes:
            raise WireError("no bodies here")

    reader = FrameReader(admit, lambda *frame: None, 4096)
    at = 0
    with contextlib.suppress(WireError):
        while at < len(data):
            room = reader.buffer()
            count = min(size, len(room), len(data) - at)
            room[:count] = data[at : at + count]
            reader.advance(count)
            at += count
            assert len(reader._store) <= 4096
