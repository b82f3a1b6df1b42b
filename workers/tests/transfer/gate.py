"""A relay between a decode and a prefill worker that stops, drops or halves what is said from a chosen message on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from tandem_worker.transfer.wire import HEAD


@dataclass(frozen=True)
class Hold:
    """What happens to the message `tag` that `way` ("D" or "P") says.

    stop: from it on nothing passes but signs of life. half: as stop, but half of its body passes; where its pages
    travel beside the connection the message itself passes, once `Gate.before` has been called. drop: it alone is lost.
    wait: it and what follows wait for `Gate.open`.
    """

    way: str
    tag: str
    how: str = "stop"


class Gate:
    """One listening port; every connection to it is carried on to the prefill worker."""

    def __init__(self, host: str, port: int, *holds: Hold, before: Callable[[], None] = lambda: None) -> None:
        self._target = (host, port)
        self._holds = {(hold.way, hold.tag): hold.how for hold in holds}
        self._before = before
        self._tasks: list[asyncio.Task] = []
        self._writers: list[asyncio.StreamWriter] = []
        self.seen: list[tuple[str, str]] = []
        self.halved = False
        self.opened = asyncio.Event()
        self.address = ("", 0)

    async def __aenter__(self) -> Gate:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = self._server.sockets[0].getsockname()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def open(self) -> None:
        """What has waited passes, and so does all that follows."""
        self.opened.set()

    def cut(self) -> None:
        """Both ends see the connection end, whatever was under way."""
        for writer in self._writers:
            with contextlib.suppress(AttributeError):
                writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        on_reader, on_writer = await asyncio.open_connection(*self._target)
        self._writers += [writer, on_writer]
        self._tasks += [
            asyncio.create_task(self._carry("D", reader, on_writer)),
            asyncio.create_task(self._carry("P", on_reader, writer)),
        ]

    async def _carry(self, way: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held = False
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                head = await reader.readexactly(HEAD.size)
                header_bytes, body_bytes = HEAD.unpack(head)
                header = await reader.readexactly(header_bytes)
                body = await reader.readexactly(body_bytes)
                tag = msgspec.msgpack.decode(header)["m"]
                self.seen.append((way, tag))
                how = self._holds.get((way, tag), "")
                if how == "wait":
                    await self.opened.wait()
                    how = ""
                if how == "half":
                    await self._halve(reader, writer, head + header, body)
                held = held or how == "stop"
                if tag == "ping" or not (held or how):
                    writer.write(head + header + body)
                    await writer.drain()
        writer.close()

    async def _halve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, header: bytes, body: bytes
    ) -> None:
        """For good: nothing more passes this way, not even signs of life, but the end."""
        if not body:
            self._before()
        writer.write(header + body[: len(body) // 2])
        await writer.drain()
        self.halved = True
        while await reader.read(2**16):
            pass
