"""What waits to be sent on one connection: a frame of each transfer in turn, never more than a window ahead. Pure.

A transfer's last word (`commit`, `quiet`, `failed`) leaves behind its pages; where a frame may come later than a word
behind it (`ordered` False: it travels beside the connection, or over another) the word also waits until the peer has
taken every frame. It would not be true before: what is lent may change once this side gives the peer up.
A frame's loan ends when it is taken, dropped before it left, or the connection is gone.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tandem_worker.engine.lending import Loan
    from tandem_worker.transfer.wire import Chunk, Generation, Message

WINDOW_BYTES: Final = 32 * 1024 * 1024  # sent and not yet taken: twice what 100 Gbit/s carry in a millisecond


@dataclass(slots=True)
class Stream:
    """One transfer: frames that wait, bytes under way, the word that ends it."""

    frames: deque[tuple[Chunk, Loan]] = field(default_factory=deque)
    flying: list[tuple[int, int, Loan]] = field(default_factory=list)  # first page, bytes, the pages themselves
    last: Message | None = None
    ended: bool = False  # its last word has left

    @property
    def over(self) -> bool:
        """Nothing of it waits or is under way, and it will have no more."""
        return self.ended and not (self.flying or self.frames or self.last)


@dataclass(frozen=True, slots=True)
class Item:
    """What leaves next: a frame of pages, or a last word (then `body` is empty)."""

    generation: Generation
    message: Message
    body: Loan | None = None


class Outbox:
    """The pages' queue of one connection."""

    def __init__(self, window: int = WINDOW_BYTES) -> None:
        self.window = window  # bytes that may be under way
        self._streams: OrderedDict[Generation, Stream] = OrderedDict()
        self.waiting = 0  # bytes that have not left
        self.flying = 0  # bytes that left and are not taken
        self.ordered = True  # is a frame there when a word that leaves behind it is?

    def add(self, generation: Generation, chunk: Chunk, body: Loan) -> None:
        """Pages of one frame."""
        self._streams.setdefault(generation, Stream()).frames.append((chunk, body))
        self.waiting += body.size

    def finish(self, generation: Generation, message: Message) -> None:
        """The transfer's last word."""
        self._streams.setdefault(generation, Stream()).last = message

    def drop(self, generation: Generation) -> None:
        """Forget what waits of this transfer, its last word too; what is under way stays counted."""
        stream = self._streams.get(generation)
        if stream is None:
            return
        for _, body in stream.frames:
            self.waiting -= body.size
            body.end()
        stream.frames.clear()
        stream.last, stream.ended = None, False
        if not stream.flying:
            del self._streams[generation]

    def next(self) -> Item | None:
        """What leaves now; it counts as sent. None: nothing waits, or the window is full."""
        for generation, stream in self._streams.items():
            item = self._of(generation, stream)
            if item is not None:
                self._streams.move_to_end(generation)
                return item
        return None

    def _of(self, generation: Generation, stream: Stream) -> Item | None:
        if stream.frames:
            if self.flying >= self.window:
                return None
            chunk, body = stream.frames.popleft()
            self._fly(stream, chunk.first_page, body)
            return Item(generation, chunk, body)
        if stream.last is None or (stream.flying and not self.ordered):
            return None
        word, stream.last, stream.ended = stream.last, None, True
        return Item(generation, word)

    def _fly(self, stream: Stream, first_page: int, body: Loan) -> None:
        self.waiting -= body.size
        self.flying += body.size
        stream.flying.append((first_page, body.size, body))

    def taken(self, generation: Generation, first_page: int, size: int) -> bool:
        """The peer has taken this frame. False: it cannot have, no such frame is under way."""
        stream = self._streams.get(generation)
        if stream is None:
            return False
        frame = next((one for one in stream.flying if one[:2] == (first_page, size)), None)
        if frame is None:
            return False
        stream.flying.remove(frame)
        frame[2].end()
        self.flying -= size
        if not (stream.flying or stream.frames or stream.last or stream.ended):
            del self._streams[generation]
        return True

    def settled(self) -> list[Generation]:
        """Transfers whose last word has left and whose pages are all taken; each is named once."""
        over = [generation for generation, stream in self._streams.items() if stream.over]
        for generation in over:
            del self._streams[generation]
        return over

    def clear(self) -> None:
        """The connection is gone: whoever still reads takes nothing in any more."""
        for stream in self._streams.values():
            for body in (*(one for _, one in stream.frames), *(one for _, _, one in stream.flying)):
                body.end()
        self._streams.clear()
        self.waiting = self.flying = 0
