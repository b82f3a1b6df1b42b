"""How long the body behind a header may be: known from the header alone, before a byte of it is read."""

from __future__ import annotations

from typing import Final

from tandem_worker.transfer.wire import AnyMessage, Chunk, Prefill

PROMPT_BYTES: Final = 16 * 1024 * 1024  # four million tokens; what a context holds the engine says, politely
TOKEN_BYTES: Final = 4
FRAME_BESIDE_BYTES: Final = 16 * 1024 * 1024  # of pages that lie beside the connection: nothing waits behind them


def has_its_body(message: AnyMessage, body_bytes: int, page_bytes: int, frame_bytes: int) -> bool:
    """Is this the length that the header says: a chunk's pages (here or beside), a prompt's tokens, else nothing?"""
    if isinstance(message, Chunk):
        size = message.pages * page_bytes
        most = frame_bytes if not message.at else FRAME_BESIDE_BYTES + page_bytes
        return size <= most and (body_bytes, message.size_beside) in ((size, 0), (0, size))
    if isinstance(message, Prefill):
        return body_bytes % TOKEN_BYTES == 0 and 0 < body_bytes <= PROMPT_BYTES
    return body_bytes == 0
