"""Frames come out as they went in, however the stream is cut; and nothing oversized or strange is taken in."""

import contextlib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_worker.transfer.wire import (
    HEAD,
    MAX_BODY,
    MAX_HEADER,
    Cancel,
    Chunk,
    Commit,
    Failed,
    First,
    FrameReader,
    Generation,
    NoTicket,
    Ping,
    Prefill,
    Probe,
    Probed,
    Quiet,
    SamplingFields,
    TicketGranted,
    Waits,
    WireError,
    decode,
    encode,
    frame_head,
)

GENERATION = Generation(2**64 - 1, 7)
MESSAGES = [
    Ping(),
    Probe(),
    Probed(),
    Cancel(request="r"),
    Quiet(request="r"),
    Failed(request="r", reason="no", code="queue_full"),
    NoTicket(request="r", retry_ms=250),
    TicketGranted(request="r", generation=GENERATION, first_page=3, lease_ms=30_000),
    Waits(generation=GENERATION),
    First(generation=GENERATION, token=5, logprob=-0.25, top=((5, -0.25), (6, -2.0)), finish="stop"),
    Commit(generation=GENERATION, pages=9),
    Prefill(request="r", sampling=SamplingFields(max_tokens=4, seed=11, stop_ids=(1, 2)), have_pages=1),
    Chunk(generation=GENERATION, first_page=2, pages=4),
]


def take_anything(message, body_bytes):
    pass


def feed(reader, data, sizes):
    """Hand the bytes over in reads of at most these sizes, then the rest."""
    at = 0
    for size in [*sizes, len(data)]:
        end = min(at + size, len(data))
        while at < end:
            room = reader.buffer()
            count = min(end - at, len(room))
            room[:count] = data[at : at + count]
            reader.advance(count)
            at += count


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_header_survives_the_wire(message):
    assert decode(encode(message)) == message


@settings(max_examples=60, deadline=None)
@given(
    frames=st.lists(st.tuples(st.sampled_from(MESSAGES), st.binary(max_size=9000)), max_size=6),
    cuts=st.lists(st.integers(1, 3000), min_size=1, max_size=40),
)
def test_frames_come_out_however_the_stream_is_cut(frames, cuts):
    seen = []
    reader = FrameReader(take_anything, lambda message, header, body: seen.append((message, bytes(body))))
    data = b"".join(frame_head(encode(message), len(body)) + body for message, body in frames)
    feed(reader, data, [*cuts, len(data) + 1])
    assert seen == frames


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(HEAD.pack(0, 0), id="no header"),
        pytest.param(HEAD.pack(MAX_HEADER + 1, 0), id="header over the cap"),
        pytest.param(HEAD.pack(10, MAX_BODY + 1), id="body over the cap"),
        pytest.param(HEAD.pack(4, 0) + b"\xff\xff\xff\xff", id="no msgpack"),
        pytest.param(frame_head(msgspec.msgpack.encode({"m": "nonsense"})), id="unknown message"),
        pytest.param(frame_head(msgspec.msgpack.encode({"m": "cancel", "request": "x" * 201})), id="long id"),
        pytest.param(frame_head(msgspec.msgpack.encode({"m": "cancel", "request": 3})), id="wrong type"),
        pytest.param(
            frame_head(msgspec.msgpack.encode({"m": "chunk", "generation": [1, 2], "first_page": -1, "pages": 1})),
            id="negative page",
        ),
    ],
)
def test_nonsense_ends_the_connection(data):
    reader = FrameReader(take_anything, lambda *frame: pytest.fail("a frame came out"))
    with pytest.raises(WireError):
        feed(reader, data, [len(data)])


def test_a_body_is_judged_before_it_has_a_place():
    def refuse(message, body_bytes):
        raise WireError(f"{body_bytes} B are too many")

    reader = FrameReader(refuse, lambda *frame: None)
    with pytest.raises(WireError, match="too many"):
        feed(reader, frame_head(encode(Ping()), 200 * 1024 * 1024), [1000])
    assert len(reader.buffer()) < 5000


@given(st.binary(max_size=300))
def test_any_bytes_give_a_message_or_a_wire_error(data):
    with contextlib.suppress(WireError):
        decode(data)
