"""A prefill or a decode worker's end of a connection, driven frame by frame by a test."""

import asyncio

from tandem_worker.transfer.handshake import Handshake, Side
from tandem_worker.transfer.wire import (
    HEAD,
    decode,
    encode,
    frame_head,
)


class HandMade:
    """A prefill worker's or a decode worker's end, driven frame by frame."""

    def __init__(self, reader, writer):
        self._reader, self._writer = reader, writer

    async def send(self, message, body=b""):
        self._writer.write(frame_head(encode(message), len(body)) + body)
        await self._writer.drain()

    async def read(self):
        async with asyncio.timeout(30):
            while True:
                header, body = HEAD.unpack(await self._reader.readexactly(HEAD.size))
                raw = await self._reader.readexactly(header)
                await self._reader.readexactly(body)
                if type(message := decode(raw)).__name__ not in {"Ping", "Taken", "Probe"}:
                    return message, raw

    async def shake(self, side, identity, key):
        return await self.talk(Handshake(side, identity, key))

    async def talk(self, handshake):
        for message in handshake.start().send:
            await self.send(message)
        while True:
            step = handshake.receive(*await self.read())
            for message in step.send:
                await self.send(message)
            if step.peer or step.refused:
                return step

    def close(self):
        self._writer.close()


def identity_of(worker):
    from tandem_worker.transfer.handshake import Identity

    info, settings = worker.engine.info, worker.settings
    return Identity(settings.served_name, info.config_hash, settings.dtype, settings.page_tokens, info.layers,
                    info.kv_heads, info.head_dim, "hand-made", 99, backend=settings.backend)  # fmt: skip


async def forge(decode):
    """A hand-made prefill worker that `decode` is connected to: (its end, the link, the server to close)."""
    ends = asyncio.Queue()
    server = await asyncio.start_server(lambda r, w: ends.put_nowait(HandMade(r, w)), "127.0.0.1", 0)
    link = asyncio.create_task(decode.node.peers.get(server.sockets[0].getsockname()))
    forged = await ends.get()
    assert (await forged.shake(Side.ANSWERER, identity_of(decode), bytes.fromhex("7" * 64))).peer
    return forged, await link, server
