"""A connection's pages as they come in: brought to where they belong, wherever they lie, and then said to be taken."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tandem_worker.transfer.base import LaneError
from tandem_worker.transfer.wire import Chunk, Taken

if TYPE_CHECKING:
    from tandem_worker.transfer.base import Channel, Owner
    from tandem_worker.transfer.lanes import Lanes


class Incoming:
    """One connection's, with those that joined it."""

    def __init__(self, channel: Channel, lanes: Lanes, owner: Owner, page_bytes: int) -> None:
        self._channel = channel
        self._lanes = lanes
        self._owner = owner
        self._page_bytes = page_bytes

    def hear(self, chunk: Chunk, *, placed: bool) -> None:
        """A chunk came; `placed`: its bytes too, to their place. Raises WireError for a place that was not lent."""
        if not chunk.at:
            self._lanes.heard_here()
            self._take(chunk, placed=placed)
        elif (pieces := self._owner.place(self._channel, chunk)) is None:
            self._take(chunk, placed=False)
        else:
            try:
                fetch = self._lanes.fetch(chunk.at, pieces)
            except LaneError as error:
                self._channel.abort(str(error))
                return
            if fetch is None:
                self._take(chunk, placed=True)
            else:
                fetch.add_done_callback(lambda done: self._fetched(chunk, done))

    def _fetched(self, chunk: Chunk, done: asyncio.Future[None]) -> None:
        error = None if done.cancelled() else done.exception()
        if done.cancelled() or not self._channel.alive:
            return  # its owner has heard of the connection's end, or will
        if error is not None:
            self._channel.abort(str(error))
        else:
            self._take(chunk, placed=True)

    def _take(self, chunk: Chunk, *, placed: bool) -> None:
        if placed:
            self._owner.landed(self._channel, chunk)
        size = chunk.pages * self._page_bytes
        self._channel.send(Taken(generation=chunk.generation, first_page=chunk.first_page, size=size))
