"""What two workers say to each other, and how it lies on the wire: msgpack headers, raw bodies, every length capped.

A frame: 4 bytes header length, 8 bytes body length (big-endian), the header, the body. Lengths are judged before
anything of that size is allocated; what a header's type may carry is judged by the reader of the frame (`admit`).
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Annotated, Final, NamedTuple

import msgspec

PROTOCOL_VERSION: Final = 6
HEAD: Final = struct.Struct("!IQ")
MAX_HEADER: Final = 64 * 1024
MAX_BODY: Final = 256 * 1024 * 1024
NONCE_BYTES: Final = 32
MAX_GRAMMAR: Final = 32 * 1024  # characters; the engine holds it to as many bytes, so that the header holds it

Text = Annotated[str, msgspec.Meta(max_length=512)]
RequestId = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Place = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Size = Annotated[int, msgspec.Meta(ge=1, le=MAX_BODY)]
MAX_SPANS: Final = 2048  # of one frame; each takes 15 bytes at most, so that the header holds them
TokenId = Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]  # -1: the engine failed, no token


class WireError(Exception):
    """The other side spoke nonsense: the connection ends, with this sentence as its reason."""


class Generation(msgspec.Struct, frozen=True, array_like=True):
    """Which promise is meant: the decode worker's incarnation (random, 64 bits) and its ticket counter."""

    incarnation: Annotated[int, msgspec.Meta(ge=0)]
    counter: Annotated[int, msgspec.Meta(ge=0)]


class Span(NamedTuple):
    """A run of bytes in the memory that P has lent."""

    at: Place
    size: Size


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="m", tag=str.lower):
    """Base of all headers; the tag is the message's name in docs/reference/transfer.md."""


class Hello(Message, frozen=True, kw_only=True):
    """Who speaks and what its KV pages mean. From version to backend all must be equal, but for `tensor`."""

    version: Count
    model: Text
    config_hash: Text
    dtype: Text
    page_tokens: Count
    layers: Count
    kv_heads: Count
    head_dim: Count
    revision: Text
    layout: Text
    tensor: Annotated[int, msgspec.Meta(ge=1, le=1024)]
    backend: Text
    worker: Text  # pod name, for people
    incarnation: Annotated[int, msgspec.Meta(ge=0)]
    nonce: Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
    joins: Annotated[bytes, msgspec.Meta(max_length=NONCE_BYTES)] = b""  # D's nonce of the connection it belongs to


class Auth(Message, frozen=True, kw_only=True):
    """HMAC-SHA256 over the direction and both hellos, by the shared key."""

    mac: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


class Refuse(Message, frozen=True, kw_only=True):
    """The last word of a side that will not talk: what differs, as (refuser's value, other's value)."""

    reason: Text
    differs: Annotated[dict[Text, tuple[Text, Text]], msgspec.Meta(max_length=16)] = {}


class Lend(Message, frozen=True, kw_only=True):
    """P → D, right after the handshake. Pages may travel beside this connection: what D needs to read them there."""

    backend: Text
    where: Text
    token: Annotated[bytes, msgspec.Meta(max_length=64)]
    size: Annotated[int, msgspec.Meta(ge=1, le=2**40)]
    key: Annotated[bytes, msgspec.Meta(max_length=4096)] = b""  # a library's own words about memory that D may read


class Borrowed(Message, frozen=True, kw_only=True):
    """D → P. How pages travel from now on: as lent, or (`reason`) over this connection."""

    backend: Text
    reason: Text = ""


class Ping(Message, frozen=True, kw_only=True):
    """Sent every second by both sides: any frame at all is a sign of life."""


class SamplingFields(msgspec.Struct, frozen=True):
    """The engine's `Sampling`, as it travels."""

    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    temperature: Annotated[float, msgspec.Meta(ge=0, le=100)] = 0.0
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    seed: int | None = None
    stop_ids: Annotated[tuple[TokenId, ...], msgspec.Meta(max_length=64)] = ()
    ignore_eos: bool = False
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0
    top_k: Count = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Annotated[tuple[tuple[TokenId, float], ...], msgspec.Meta(max_length=300)] = ()
    min_tokens: Count = 0
    grammar: Annotated[str, msgspec.Meta(max_length=MAX_GRAMMAR)] = ""
    priority: int = 0
    blocks: Annotated[bytes, msgspec.Meta(max_length=8 * 1024)] = b""  # events.py: MAX_BLOCKS hashes
    prompt_bytes: Count = 0
    trace: Annotated[str, msgspec.Meta(max_length=64)] = ""  # W3C's traceparent


class Probe(Message, frozen=True, kw_only=True):
    """P → D, twice, once both know how pages travel: bytes that measure it. They lie in what P lent, or follow."""

    at: Annotated[tuple[Span, ...], msgspec.Meta(max_length=1)] = ()

    @property
    def size_beside(self) -> int:
        """Bytes that lie elsewhere."""
        return sum(span.size for span in self.at)


class Probed(Message, frozen=True, kw_only=True):
    """D → P. The probe's bytes are here."""


class Prefill(Message, frozen=True, kw_only=True):
    """D → P. Compute this prompt (body: int32 little-endian token ids); the first `have_pages` pages are here."""

    request: RequestId
    sampling: SamplingFields
    have_pages: Count


class AskTicket(Message, frozen=True, kw_only=True, tag="ticket?"):
    """P → D. The request is at the head of the queue: reserve its pages now."""

    request: RequestId
    pages: Count


class TicketGranted(Message, frozen=True, kw_only=True, tag="ticket"):
    """D → P. Pages from `first_page` on are promised for `lease_ms`; each chunk, and each `waits`, renews the lease."""

    request: RequestId
    generation: Generation
    first_page: Count
    lease_ms: Count


class NoTicket(Message, frozen=True, kw_only=True):
    """D → P. No room: ask again after `retry_ms`; or never, where `reason` is not empty."""

    request: RequestId
    retry_ms: Count = 0
    reason: Text = ""


class Waits(Message, frozen=True, kw_only=True):
    """P → D. Others are computed before this prompt, and since the last word of it some of that was done."""

    generation: Generation


class First(Message, frozen=True, kw_only=True):
    """P → D. The first token, ahead of the last chunk's pages: a client sees it before the KV has travelled."""

    generation: Generation
    token: TokenId
    logprob: float
    top: Annotated[tuple[tuple[TokenId, float], ...], msgspec.Meta(max_length=64)] = ()
    finish: Text | None = None


class Chunk(Message, frozen=True, kw_only=True):
    """P → D. `pages` pages from `first_page` on (raw KV [n, layers, 2, page_tokens, kv_heads, head_dim])."""

    generation: Generation
    first_page: Count
    pages: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    at: Annotated[tuple[Span, ...], msgspec.Meta(max_length=MAX_SPANS)] = ()  # where the bytes lie; none: they follow

    @property
    def size_beside(self) -> int:
        """Bytes that lie elsewhere."""
        return sum(span.size for span in self.at)


class Commit(Message, frozen=True, kw_only=True):
    """P → D. All `pages` pages of the prompt have been sent; nothing more is in flight."""

    generation: Generation
    pages: Count


class Taken(Message, frozen=True, kw_only=True):
    """D → P. This chunk's bytes have been read, whatever became of them: its pages are P's alone again."""

    generation: Generation
    first_page: Count
    size: Size


class Cancel(Message, frozen=True, kw_only=True):
    """D → P. Stop this request within one step, then answer `quiet`."""

    request: RequestId


class Quiet(Message, frozen=True, kw_only=True):
    """P → D. Nothing of this request is in flight any more, for good."""

    request: RequestId


class Failed(Message, frozen=True, kw_only=True):
    """P → D. The request ended without its end; nothing of it is in flight. `code`: queue_full, too_long, error."""

    request: RequestId
    reason: Text
    code: Text = "error"
    retry_after_s: Count = 1  # with queue_full


AnyMessage = (
    Hello | Auth | Refuse | Lend | Borrowed | Ping | Probe | Probed | Prefill | AskTicket | TicketGranted | NoTicket
    | Waits | First | Chunk | Commit | Taken | Cancel | Quiet | Failed
)  # fmt: skip


class Opening(msgspec.Struct, frozen=True):
    """What a hello says in every version, whatever else it says or lacks."""

    m: Text
    version: Count


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)
_opening = msgspec.msgpack.Decoder(Opening)
_UNREADABLE: Final = (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError)


def encode(message: Message) -> bytes:
    """A message's header bytes."""
    return _encoder.encode(message)


def decode(header: bytes | bytearray | memoryview) -> AnyMessage:
    """Header bytes → a typed message. Raises WireError on anything else."""
    try:
        return _decoder.decode(header)
    except _UNREADABLE as error:
        raise WireError(f"unreadable header: {error}") from error


def decode_strangers(header: bytes | bytearray | memoryview) -> AnyMessage:
    """As `decode`, but of a hello of another version only that is read: its other words may be missing or others."""
    try:
        opening = _opening.decode(header)
    except _UNREADABLE:
        return decode(header)
    if opening.m != "hello" or opening.version == PROTOCOL_VERSION:
        return decode(header)
    return Hello(
        version=opening.version, model="", config_hash="", dtype="", page_tokens=0, layers=0, kv_heads=0, head_dim=0,
        revision="", layout="", tensor=1, backend="", worker="", incarnation=0, nonce=b"",
    )  # fmt: skip


def frame_head(header: bytes, body_bytes: int = 0) -> bytes:
    """Lengths and header of a frame whose body follows. Raises WireError where a cap is broken by ourselves."""
    if len(header) > MAX_HEADER or body_bytes > MAX_BODY:
        raise WireError(f"frame too large to send: header {len(header)} B, body {body_bytes} B")
    return HEAD.pack(len(header), body_bytes) + header


class FrameReader:
    """Cuts a byte stream into frames; fits asyncio.BufferedProtocol.

    Write into `buffer()`, then `advance(n)`. A finished frame is handed to `on_frame(message, header, body)` before
    `advance` returns; `body` is a view that is only valid during that call, since the buffer is used again.
    `admit(message, body_bytes)` raises WireError where that body must not follow; it is asked before allocation.
    `place(message, body_bytes)` may name memory of that very size: then the bytes go there, and `body` is None.
    `decode` reads headers until `trust`, which also ends a lower cap on them.
    """

    def __init__(
        self,
        admit: Callable[[AnyMessage, int], None],
        on_frame: Callable[[AnyMessage, bytes, memoryview | None], None],
        max_header: int = MAX_HEADER,
        place: Callable[[AnyMessage, int], Sequence[memoryview] | None] = lambda message, size: None,  # noqa: ARG005 - nowhere
        decode: Callable[[bytes], AnyMessage] = decode,
    ) -> None:
        self._admit = admit
        self._on_frame = on_frame
        self._place = place
        self._max_header = max_header
        self._decode = decode
        self._store = bytearray(4096)
        self._message: AnyMessage | None = None
        self._header = b""
        self._body_bytes = 0
        self._part = memoryview(b"")
        self._got = 0
        self._step: Callable[[memoryview], None] = self._read_head
        self._pieces: deque[memoryview] = deque()  # of a body that has a place, behind the one that is filled now
        self._expect(HEAD.size, self._read_head)

    def trust(self) -> None:
        """The peer is proven: from now on its headers may be as long as any, and are read as this version's."""
        self._max_header, self._decode = MAX_HEADER, decode

    def buffer(self) -> memoryview:
        """Where the next bytes go: exactly what is missing of the present part."""
        return self._part[self._got :]

    def advance(self, count: int) -> None:
        """`count` bytes were written into `buffer()`. Raises WireError."""
        self._got += count
        if self._got < len(self._part):
            return
        if self._pieces:
            self._part, self._got = self._pieces.popleft(), 0
        else:
            self._step(self._part)

    def _expect(self, size: int, step: Callable[[memoryview], None]) -> None:
        if len(self._store) < size:
            # A new store, not a longer one: views of the old one may still be exported.
            self._store = bytearray(size)
        self._part, self._got, self._step = memoryview(self._store)[:size], 0, step

    def _read_head(self, part: memoryview) -> None:
        header_bytes, self._body_bytes = HEAD.unpack(part)
        if not 0 < header_bytes <= self._max_header or self._body_bytes > MAX_BODY:
            raise WireError(f"frame of {header_bytes} B header and {self._body_bytes} B body is over the cap")
        self._expect(header_bytes, self._read_header)

    def _read_header(self, part: memoryview) -> None:
        self._header = bytes(part)
        self._message = self._decode(self._header)
        self._admit(self._message, self._body_bytes)
        if not self._body_bytes:
            self._finish(part[:0])
        elif (pieces := self._place(self._message, self._body_bytes)) is None:
            self._expect(self._body_bytes, self._finish)
        else:
            self._pieces.extend(pieces)
            self._part, self._got, self._step = self._pieces.popleft(), 0, lambda _: self._finish(None)

    def _finish(self, body: memoryview | None) -> None:
        message, header = self._message, self._header
        if message is None:
            raise WireError("a body without a header")
        self._message = None
        self._expect(HEAD.size, self._read_head)
        self._on_frame(message, header, body)
