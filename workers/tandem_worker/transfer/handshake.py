"""The first words between two workers: equal models and KV layouts, and the same key, or a refusal that says why.

Pure: messages in, messages out. The opener is the decode worker; the answerer listens.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tandem_worker.transfer.reshard import reshard, shares_of
from tandem_worker.transfer.wire import NONCE_BYTES, PROTOCOL_VERSION, AnyMessage, Auth, Hello, Message, Refuse, encode

KEY_BYTES_AT_LEAST: Final = 16
MUST_EQUAL: Final = (
    "version", "model", "revision", "config_hash", "dtype", "layout", "page_tokens", "layers", "kv_heads", "head_dim",
    "backend",
)  # fmt: skip
LAYOUT: Final = "pages,shares,layers,kv,tokens,heads,dim"  # the order of a page's axes on the wire: see reshard.py
# By `--kv`: numbers of `dtype`, or bytes with an fp32 scale behind those of each head.
LAYOUTS: Final = {"": LAYOUT, "int8": f"{LAYOUT}:int8+scale", "fp8": f"{LAYOUT}:fp8+scale"}
SCALE_BYTES: Final = 4

RESHARDS: Final = "tcp"  # the backend that sends pages in another form than they lie in


class Side(StrEnum):
    """Whose words a mac covers: one side's mac can never be played back as the other's."""

    OPENER = "opener"
    ANSWERER = "answerer"


@dataclass(frozen=True, slots=True)
class Identity:
    """What a worker says of itself; equal on two workers exactly when their pages mean the same."""

    model: str
    config_hash: str
    dtype: str
    page_tokens: int
    layers: int
    kv_heads: int
    head_dim: int
    worker: str
    incarnation: int
    revision: str = ""  # of the model's files; empty: nobody pinned it
    layout: str = LAYOUT
    tensor: int = 1  # ranks that share the heads; the other side may have another number
    backend: str = "tcp"  # asked for; which one is in use the two sides agree on afterwards

    def hello(self, joins: bytes = b"") -> Hello:
        """A hello with a fresh nonce; `joins` names an earlier connection by its opener's."""
        return Hello(
            version=PROTOCOL_VERSION,
            model=self.model,
            config_hash=self.config_hash,
            dtype=self.dtype,
            page_tokens=self.page_tokens,
            layers=self.layers,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            revision=self.revision,
            layout=self.layout,
            tensor=self.tensor,
            backend=self.backend,
            worker=self.worker,
            incarnation=self.incarnation,
            nonce=secrets.token_bytes(NONCE_BYTES),
            joins=joins,
        )


class RefusedError(Exception):
    """The two workers must not exchange pages; the text names each differing field with both values."""


@dataclass(frozen=True, slots=True)
class Step:
    """What to send now; `peer` is set once the other side is known and proven, `refused` where it never will be."""

    send: tuple[Message, ...] = ()
    peer: Hello | None = None
    refused: str = ""


def differences(ours: Hello, theirs: Hello) -> dict[str, tuple[str, str]]:
    """Fields that must be equal and are not: name → (our value, their value). In another version they mean nothing."""
    names = MUST_EQUAL if ours.version == theirs.version else ("version",)
    pairs = {name: (str(getattr(ours, name)), str(getattr(theirs, name))) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def misfit(ours: Hello, theirs: Hello) -> Refuse | None:
    """Why these two must not exchange pages: other models or layouts, or ranks that cannot share the heads evenly."""
    if differs := differences(ours, theirs):
        return Refuse(reason="the two workers do not fit", differs=differs)
    differs = {"tensor": (str(ours.tensor), str(theirs.tensor))}
    try:
        reshard(ours.kv_heads, ours.tensor, theirs.tensor)
    except ValueError as error:
        return Refuse(reason=f"pages cannot be resharded between the two workers ({error})", differs=differs)
    shares = {shares_of(one.tensor, one.kv_heads) for one in (ours, theirs)}
    if ours.backend != RESHARDS and len(shares) > 1:
        reason = f"{ours.backend} reads pages where they lie, so both sides' ranks must hold the same heads; use tcp"
        return Refuse(reason=reason, differs=differs)
    return None


def spell(refuse: Refuse, speaker: str) -> str:
    """A refusal in words; `speaker` is the one whose values come first."""
    fields = "; ".join(f"{name} is {a} at {speaker}, {b} at the other side" for name, (a, b) in refuse.differs.items())
    return f"{refuse.reason}: {fields}" if fields else refuse.reason


def make_mac(key: bytes, side: Side, opener: bytes, answerer: bytes) -> bytes:
    """HMAC-SHA256 over the direction and both hellos as sent, each with its length in front."""
    parts = (side.value.encode(), opener, answerer)
    return hmac.new(key, b"".join(len(p).to_bytes(4, "big") + p for p in parts), hashlib.sha256).digest()


class Handshake:
    """One side of one handshake. `start()` once, then `receive` each message until a peer or a refusal is known."""

    def __init__(self, side: Side, identity: Identity, key: bytes, joins: bytes = b"") -> None:
        """`joins`: the opener's nonce of the connection that this one belongs to."""
        self._side = side
        self._key = key
        self._ours = identity.hello(joins)
        self.nonce = self._ours.nonce
        self._ours_raw = encode(self._ours)
        self._theirs: Hello | None = None
        self._theirs_raw = b""

    def start(self) -> Step:
        """The opener speaks first; the answerer says nothing of itself before it heard a fitting hello."""
        return Step(send=(self._ours,)) if self._side is Side.OPENER else Step()

    def receive(self, message: AnyMessage, raw: bytes) -> Step:
        """`raw` is the header as it came, which the macs cover."""
        if isinstance(message, Refuse):
            return Step(refused=spell(message, "the peer"))
        if self._theirs is None:
            return self._hear_hello(message, raw)
        return self._hear_auth(message, self._theirs)

    def _hear_hello(self, message: AnyMessage, raw: bytes) -> Step:
        if not isinstance(message, Hello):
            return self._refuse(Refuse(reason="the first message must be hello"))
        if (refuse := misfit(self._ours, message)) is not None:
            return self._refuse(refuse)
        self._theirs, self._theirs_raw = message, raw
        if self._side is Side.ANSWERER:
            return Step(send=(self._ours,))
        return Step(send=(Auth(mac=self._mac(Side.OPENER)),))

    def _hear_auth(self, message: AnyMessage, theirs: Hello) -> Step:
        if not isinstance(message, Auth):
            return self._refuse(Refuse(reason="hello must be followed by auth"))
        other = Side.ANSWERER if self._side is Side.OPENER else Side.OPENER
        if not hmac.compare_digest(message.mac, self._mac(other)):
            return self._refuse(Refuse(reason="the transfer keys differ"))
        proof = () if self._side is Side.OPENER else (Auth(mac=self._mac(Side.ANSWERER)),)
        return Step(send=proof, peer=theirs)

    def _mac(self, side: Side) -> bytes:
        hellos = (self._ours_raw, self._theirs_raw)
        opener, answerer = hellos if self._side is Side.OPENER else hellos[::-1]
        return make_mac(self._key, side, opener, answerer)

    @staticmethod
    def _refuse(refuse: Refuse) -> Step:
        return Step(send=(refuse,), refused=spell(refuse, "this worker"))


def parse_key(text: str) -> bytes:
    """The shared key from its hex form. Raises ValueError with what to do."""
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        raise ValueError("TANDEM_TRANSFER_KEY is not hexadecimal: give the Secret's 64 hex characters") from None
    if len(key) < KEY_BYTES_AT_LEAST:
        raise ValueError(f"TANDEM_TRANSFER_KEY has {len(key)} bytes, at least {KEY_BYTES_AT_LEAST} are needed")
    return key


def new_incarnation() -> int:
    """A random 64-bit number: a process that restarts at the same address is somebody else."""
    return secrets.randbits(64)


__all__ = [
    "Handshake",
    "Identity",
    "RefusedError",
    "Side",
    "Step",
    "differences",
    "make_mac",
    "new_incarnation",
    "parse_key",
]
