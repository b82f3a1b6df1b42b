"""A relay between a decode and a prefill worker that stops the stream at a chosen message, and can cut it there."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

import msgspec

from tandem_worker.transfer.wire import HEAD


@dataclass(frozen=True)
class Hold:
    """Nothing that `way` ("D" or "P") says passes from the first message `tag` on; `middle`: but half of its body."""

    way: str
    tag: str
    middle: bool = False


class Gate:
    """One listening port; every connection to it is carried on to the prefill worker."""

    def __init__(self, host: str, port: int, hold: Hold | None = None) -> None:
        self._target = (host, port)
        self._hold = hold
        self._tasks: list[asyncio.Task] = []
        self._writers: list[asyncio.StreamWriter] = []
        self.reached = asyncio.Event()
        self.seen: list[tuple[str, str]] = []
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

    def cut(self) -> None:
        """Both ends see the connection end, whatever was under way."""
        for writer in self._writers:
            with contextlib.suppress(AttributeError):
                writer.transport.abort()

    def let_go(self) -> None:
        """Connections that are made from now on pass."""
        self._hold = None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        on_reader, on_writer = await asyncio.open_connection(*self._target)
        self._writers += [writer, on_writer]
        self._tasks += [
            asyncio.create_task(self._carry("D", reader, on_writer)),
            asyncio.create_task(self._carry("P", on_reader, writer)),
        ]

    async def _carry(self, way: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                head = await reader.readexactly(HEAD.size)
                header_bytes, body_bytes = HEAD.unpack(head)
                header = await reader.readexactly(header_bytes)
                body = await reader.readexactly(body_bytes)
                tag = msgspec.msgpack.decode(header)["m"]
                self.seen.append((way, tag))
                hold = self._hold
                if hold is not None and (hold.way, hold.tag) == (way, tag):
                    if hold.middle:
                        writer.write(head + header + body[: body_bytes // 2])
                        await writer.drain()
                    self.reached.set()
                    await asyncio.Event().wait()
                writer.write(head + header + body)
                await writer.drain()
        writer.close()
