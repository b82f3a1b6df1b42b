"""Bytes to a client, with a deadline."""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web

WRITE_S: Final = 30.0  # a client that reads nothing for so long is gone


async def write(response: web.StreamResponse, data: bytes) -> None:
    """Raises TimeoutError when the client has stopped reading: the buffer before it is bounded by aiohttp."""
    if data:
        async with asyncio.timeout(WRITE_S):
            await response.write(data)
