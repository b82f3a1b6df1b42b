"""Who this worker is connected to: one persistent connection to each prefill worker, opened when first needed."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from tandem_worker.transfer.handshake import RefusedError, Side
from tandem_worker.transfer.link import HANDSHAKE_S, Link
from tandem_worker.transfer.terms import Terms

if TYPE_CHECKING:
    from tandem_worker.transfer.base import Owner

LOG = logging.getLogger(__name__)
STOPS: Final = "this worker stops"
STOP_S: Final = 1.0
LOOK_S: Final = 0.01
CONNECT_S: Final = 3.0
PEERS_AT_MOST: Final = 1024
STRANGERS_AT_MOST: Final = 64  # connections whose handshake is not done


class PeerError(Exception):
    """The prefill worker cannot be had; the text says which and why."""


def parse_address(text: str) -> tuple[str, int]:
    """`10.0.0.1:8001` or `[fd00::1]:8001`. Raises ValueError; names are refused, so nothing is ever looked up."""
    host, _, port = text.rpartition(":")
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
        number = int(port)
    except ValueError:
        raise ValueError(f"{text[:80]!r} is not ip:port") from None
    if not 0 < number < 65536:
        raise ValueError(f"{text[:80]!r} has no valid port")
    return str(address), number


class Peers:
    """Connections that this worker opens, by address."""

    def __init__(self, terms: Terms, owner: Owner, local_host: str | None = None) -> None:
        self._terms = terms
        self._owner = owner
        self._local = (local_host, 0) if local_host else None
        self._links: dict[tuple[str, int], Link] = {}
        self._opening: dict[tuple[str, int], asyncio.Task[Link]] = {}

    async def get(self, address: tuple[str, int]) -> Link:
        """The live connection to `address`, opened if need be. Raises PeerError within CONNECT_S + HANDSHAKE_S."""
        link = self._links.get(address)
        if link is not None and link.alive:
            return link
        task = self._opening.get(address)
        if task is None:
            task = asyncio.create_task(self._open(address))
            self._opening[address] = task
            task.add_done_callback(lambda done: self._opened(address, done))
        # Shielded: others may wait for the same connection.
        return await asyncio.shield(task)

    async def close(self) -> None:
        """End all connections."""
        for task in list(self._opening.values()):
            task.cancel()
        links, self._links = list(self._links.values()), {}
        await ended(links)

    def _opened(self, address: tuple[str, int], done: asyncio.Task[Link]) -> None:
        self._opening.pop(address, None)
        if not done.cancelled():
            done.exception()  # heard, even if all that waited have left

    async def _open(self, address: tuple[str, int]) -> Link:
        self._links = {known: link for known, link in self._links.items() if link.alive}
        if len(self._links) >= PEERS_AT_MOST:
            raise PeerError(f"{PEERS_AT_MOST} prefill workers are connected already")
        where = f"{address[0]}:{address[1]}"
        opened: list[Link] = []
        try:
            for _ in range(self._terms.connections):
                await self._connect(address, opened)
        except RefusedError as error:  # the last one closes once it has said so; the others are nobody's
            give_up(opened[:-1])
            raise PeerError(f"{where} and this worker must not exchange pages: {error}") from error
        except OSError as error:  # a timeout too
            give_up(opened)
            raise PeerError(f"no connection to {where}: {str(error) or 'timed out'}") from error
        except asyncio.CancelledError:
            give_up(opened)
            raise
        self._links[address] = opened[0]
        return opened[0]

    async def _connect(self, address: tuple[str, int], opened: list[Link]) -> None:
        """One more; all but the first carry pages alone."""
        first = opened[0] if opened else None
        async with asyncio.timeout(CONNECT_S):
            _, link = await asyncio.get_running_loop().create_connection(
                lambda: Link(Side.OPENER, self._terms, self._owner, joins=first), *address, local_addr=self._local
            )
        opened.append(link)
        async with asyncio.timeout(HANDSHAKE_S):
            await link.ready


def give_up(links: Collection[Link]) -> None:
    """Without all of its connections a peer is none."""
    for link in links:
        link.abort("no handshake")


class Listening:
    """The port where decode workers connect."""

    def __init__(self, terms: Terms, owner: Owner) -> None:
        self._terms = terms
        self._owner = owner
        self._links: set[Link] = set()
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen at that address alone; returns the port (0 picks one). Raises OSError."""
        server = await asyncio.get_running_loop().create_server(self._accept, host, port)
        self._server = server
        return int(server.sockets[0].getsockname()[1])

    @property
    def backlog(self) -> int:
        """Bytes that wait to be sent to decode workers."""
        return sum(link.backlog for link in self._links if link.alive)

    def _accept(self) -> asyncio.BaseProtocol:
        self._links = {link for link in self._links if link.alive or not link.ready.done()}
        if sum(not link.ready.done() for link in self._links) >= STRANGERS_AT_MOST:
            return Deaf()
        link = Link(Side.ANSWERER, self._terms, self._owner, find=self._find)
        self._links.add(link)
        return link

    def _find(self, nonce: bytes) -> Link | None:
        """The proven connection whose opener had this nonce."""
        return next((link for link in self._links if link.alive and link.ready.done() and link.nonce == nonce), None)

    async def close(self) -> None:
        """Stop listening and end all connections."""
        if self._server is not None:
            self._server.close()
        await ended(self._links)
        if self._server is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._server.wait_closed()


async def ended(links: Collection[Link]) -> None:
    """Close them: after what was written, but in time, and once nothing is read into this worker's memory any more.

    A peer that does not read is cut off after STOP_S; a read that its peer does not answer is waited for no longer than
    as much again: no more can be done about it than to end the process, which whoever calls this is about to do.
    """
    for link in links:
        link.close(STOPS)
    await over(links)
    for link in links:
        link.abort(STOPS)
    if left := await over(links):
        LOG.warning("%d connections still read pages after %.0f s: they end with the process", left, 2 * STOP_S)


async def over(links: Collection[Link]) -> int:
    """Until all are over, but no longer than STOP_S; how many are not."""
    clock = asyncio.get_running_loop().time
    end = clock() + STOP_S
    while clock() < end:
        if all(link.over for link in links):
            return 0
        await asyncio.sleep(LOOK_S)
    return sum(not link.over for link in links)


class Deaf(asyncio.Protocol):
    """Hangs up at once: too many strangers."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:  # noqa: D102
        transport.close()
