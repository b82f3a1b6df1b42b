"""A client of a worker's own API, with a socket and nothing else: when the first token of its stream is there."""

from __future__ import annotations

import json
import socket
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

EVENT: Final = b"data: {"
END: Final = b"data: [DONE]"
WITHIN_S: Final = 120.0


def first_token_at(port: int, prefill: str, model: str, prompt: Sequence[int], max_tokens: int) -> float:
    """Seconds of the monotonic clock. Reads to the stream's end; raises ConnectionError where it has none."""
    fields = {"model": model, "prompt": list(prompt), "max_tokens": max_tokens, "temperature": 0, "stream": True}
    body = json.dumps(fields | {"ignore_eos": True}).encode()
    lines = ["POST /v1/completions HTTP/1.1", "Host: bench", "Content-Type: application/json"]
    lines += [f"Content-Length: {len(body)}", f"x-tandem-prefill: {prefill}", "Connection: close", "", ""]
    got = bytearray()
    with socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S) as one:
        one.sendall("\r\n".join(lines).encode() + body)
        read_to(one, got, EVENT)
        seen = time.monotonic()
        read_to(one, got, END)
    return seen


def read_to(one: socket.socket, got: bytearray, word: bytes) -> None:
    """More of the answer, until it has this. Raises ConnectionError."""
    while word not in got:
        part = one.recv(65536)
        if not part:
            raise ConnectionError(f"the stream ended: {bytes(got[:200])!r}")
        got += part
