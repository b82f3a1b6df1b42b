"""GET /kv_events: what the prefix cache holds, as server-sent events with numbers, from where a reader left off.

`id` is `<epoch>:<number>`; a reader that comes back says it as `Last-Event-ID` and goes on from there. Where that is
too long ago (or another process' number) the whole state comes first, as an event `snapshot`. Nothing is buffered for a
reader: it has a place in the engine's ring of events, and one that falls behind gets a snapshot again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec
from aiohttp import web

from tandem_worker.engine.events import KvEvents, News, Stored
from tandem_worker.server.errors import ApiError, too_busy
from tandem_worker.server.write import write

if TYPE_CHECKING:
    from tandem_worker.engine.events import Event

READERS: Final = 64
AT_ONCE: Final = 256  # events in one message
QUIET_S: Final = 10.0  # then a comment says that the stream is alive


class Readers:
    """Everybody who reads the events of this worker. On the event loop."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Event] = set()

    def wake(self) -> None:
        """There is news."""
        for one in self._waiting:
            one.set()

    async def serve(self, events: KvEvents, request: web.Request) -> web.StreamResponse:
        """To the reader's end. Raises ApiError."""
        if len(self._waiting) >= READERS:
            raise ApiError(too_busy(f"{READERS} readers follow this worker's events already"))
        news = asyncio.Event()
        self._waiting.add(news)
        try:
            return await self._serve(events, request, news)
        finally:
            self._waiting.discard(news)

    async def _serve(self, events: KvEvents, request: web.Request, news: asyncio.Event) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)
        epoch, number = place(request.headers.get("Last-Event-ID", ""))
        while True:
            news.clear()
            found = events.since(epoch, number)
            data = written(found, events.epoch) if found.whole or found.events else b""
            try:
                await write(response, data or b": alive\n\n")
            except TimeoutError:  # it reads nothing
                if request.transport is not None:
                    request.transport.abort()
                return response
            epoch, number = events.epoch, found.last
            try:
                async with asyncio.timeout(QUIET_S):
                    await news.wait()
            except TimeoutError:
                continue


def place(given: str) -> tuple[str, int]:
    """`<epoch>:<number>` of a reader that was here before; nowhere for anything else."""
    epoch, _, number = given.partition(":")
    return (epoch, int(number)) if number.isascii() and number.isdigit() and len(number) < 19 else ("", 0)


def written(news: News, epoch: str) -> bytes:
    """The messages of some news; a snapshot's first one is marked as such, and clears what the reader knew."""
    parts = [news.events[at : at + AT_ONCE] for at in range(0, len(news.events), AT_ONCE)] or [()]
    lines: list[bytes] = []
    for which, part in enumerate(parts):
        if news.whole and not which:
            lines.append(b"event: snapshot\n")
        # Before its last message a snapshot has no number: who breaks off in the middle must ask for all of it again.
        number = news.last if which == len(parts) - 1 else news.last - len(news.events) + AT_ONCE * (which + 1)
        if not news.whole or which == len(parts) - 1:
            lines.append(f"id: {epoch}:{number}\n".encode())
        lines.append(b"data: " + msgspec.json.encode([plain(one) for one in part]) + b"\n\n")
    return b"".join(lines)


def plain(event: Event) -> dict[str, Any]:
    """One event as it is written."""
    if isinstance(event, Stored):
        blocks = [[block.hex(), tokens] for block, tokens in event.blocks]
        return {"type": "stored", "page": event.page.hex(), "blocks": blocks}
    return {"type": "removed", "page": event.page.hex()}
