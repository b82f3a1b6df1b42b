"""A worker's transfer as one thing: it listens, connects, can do both sides' work (a role is a routing decision)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Final

from tandem_worker.transfer.decode_side import DecodeSide
from tandem_worker.transfer.peers import Listening, Peers
from tandem_worker.transfer.prefill_side import PrefillSide
from tandem_worker.transfer.stuck import Stuck
from tandem_worker.transfer.terms import Terms
from tandem_worker.transfer.ticket import QUARANTINE_SHARE

if TYPE_CHECKING:
    from tandem_worker.engine import Engine
    from tandem_worker.transfer.base import Backend, Meter, Transfer
    from tandem_worker.transfer.handshake import Identity
    from tandem_worker.transfer.prefill_side import Post

SWEEP_S: Final = 0.05


class Node:
    """Both sides of the transfer for one engine. Make it inside the running event loop. Raises BackendError."""

    def __init__(
        self,
        engine: Engine,
        transfer: Transfer,
        backend: Backend,
        identity: Identity,
        key: bytes,
        *,
        post: Post,
        meter: Meter,
        prefill_timeout_s: float,
        local_host: str | None = None,
        connections: int = 1,
    ) -> None:
        terms = Terms(identity, key, transfer.page_bytes, transfer.frame_bytes, backend, meter, connections)
        self._backend = backend
        backend.open(engine.memory, engine.memory_file)
        clock = time.monotonic
        self.decode = DecodeSide(
            engine,
            transfer,
            identity.incarnation,
            post=post,
            clock=clock,
            meter=meter,
            prefill_timeout_s=prefill_timeout_s,
            quarantine_pages=(most := int(engine.pages * QUARANTINE_SHARE)),
        )
        self.stuck = ""  # why this process should end; whoever owns it looks
        self._stuck, self._clock = Stuck(most), clock
        self.prefill = PrefillSide(engine, transfer, identity.page_tokens, post=post, clock=clock, meter=meter)
        self.peers = Peers(terms, self.decode, local_host)
        self._listening = Listening(terms, self.prefill)
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def pushing(self) -> bool:
        """Does another worker wait for prompts or pages of this one?"""
        return self.prefill.active > 0 or self._listening.backlog > 0

    async def start(self, host: str, port: int) -> int:
        """Listen for decode workers; returns the port. Raises OSError."""
        bound = await self._listening.start(host, port)
        self._sweeper = asyncio.create_task(self._sweep())
        return bound

    async def stop(self) -> None:
        """End all connections, within a few seconds; what was under way ends as if the peer had gone."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
        await asyncio.gather(self.peers.close(), self._listening.close())
        self._backend.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self.decode.sweep()
            self.prefill.sweep()
            self.stuck = self._stuck.look(self.decode.cut_pages, self._clock())
