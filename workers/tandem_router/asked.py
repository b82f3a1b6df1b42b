"""A client's body: read just far enough to route it, the rest left as it was written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn, TypeVar

import msgspec

from tandem_router.errors import RefusedError
from tandem_router.overlap import prompt_blocks

# Bytes of JSON per prompt token, for weighing requests against each other before a tokeniser has seen them.
BYTES_PER_TOKEN = 4
# What only the router and the workers may say to each other: a client could name an address in them.
INTERNAL_FIELDS = ("kv_transfer_params", "bootstrap_host", "bootstrap_port", "bootstrap_room")

T = TypeVar("T")
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_FLAG = msgspec.json.Decoder(bool)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to place. `body` goes to the worker; `wants_usage`: the client itself asked for the usage chunk."""

    body: bytes
    stream: bool
    wants_usage: bool
    prompt_tokens: int  # an estimate, by length
    blocks: tuple[str, ...] = ()  # see overlap.py


def read_asked(raw: bytes) -> Asked:
    """Take a body apart; a streaming one asks for usage from here on. Raises RefusedError (400)."""
    fields = _fields(raw)
    stream = _flag(fields.get("stream"), "stream")
    options = _decode(_FIELDS, fields.get("stream_options"), "stream_options", "must be an object") or {}
    wants_usage = _flag(options.get("include_usage"), "stream_options.include_usage")
    sent: dict[str, object] = {name: value for name, value in fields.items() if name not in INTERNAL_FIELDS}
    if stream:
        sent["stream_options"] = {**options, "include_usage": True}
    unchanged = len(sent) == len(fields) and (not stream or wants_usage)
    body = raw if unchanged else msgspec.json.encode(sent)
    content = bytes(fields.get("messages", fields.get("prompt", b"")))
    blocks = prompt_blocks(content, bytes(fields.get("tools", b"")))
    return Asked(body, stream, wants_usage, max(len(raw) // BYTES_PER_TOKEN, 1), blocks)


def _fields(raw: bytes) -> dict[str, msgspec.Raw]:
    try:
        return _FIELDS.decode(raw)
    except msgspec.ValidationError as error:
        _refuse(f"The body must be a JSON object: {error}")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        _refuse(f"The body is not JSON: {error}")
    except RecursionError:
        _refuse("The body is nested too deeply.")


def _flag(value: msgspec.Raw | None, name: str) -> bool:
    flag: bool | None = _decode(_FLAG, value, name, "must be true or false")
    return flag or False


def _decode(decoder: msgspec.json.Decoder[T], value: msgspec.Raw | None, name: str, expected: str) -> T | None:
    if value is None or bytes(value) == b"null":
        return None
    try:
        return decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RefusedError(400, f"{name} {expected}.", "invalid_value", param=name) from error


def _refuse(message: str) -> NoReturn:
    raise RefusedError(400, message, "invalid_json") from None
