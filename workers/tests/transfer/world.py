"""Two real worker processes that are killed, stopped and come back where they were; and a client that streams."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import signal
from dataclasses import asdict
from pathlib import Path

import aiohttp

from workers.tests.ports import free_ports
from workers.tests.transfer.arranged import USUAL, Facts
from workers.tests.transfer.ends import Client, D, Row, is_at
from workers.tests.transfer.gate import Gate
from workers.tests.transfer.kit import Process, environment_of, eventually, flags_of, write_model
from workers.tests.transfer.nursery import Nursery

PREFILL, DECODE = "127.0.0.1", "127.0.0.2"
PROMPT = "Over wide plains and high hills go trains, slow and long, and they carry people. " * 2
NUMBERS = itertools.count(1)  # in front of each prompt: one that is cached would be served by the decode worker alone
WITHIN_S = 60.0
TRIES = 5
# One machine must not look like one machine to UCX: reads that its shared memory carries need no living peer.
OVER_TCP = {"UCX_TLS": "tcp,self"}


class World:
    """A prefill worker "p" and a decode worker "d" of one backend."""

    def __init__(self, directory: Path, backend: str, nursery: Nursery, *flags: str, **environment: str):
        self.backend = backend
        self._directory, self._nursery, self._flags, self._environment = directory, nursery, flags, environment
        self._model = write_model(directory / "tiny")
        self._addresses = {name: (host, free_ports(host)) for name, host in (("p", PREFILL), ("d", DECODE))}
        self._started = 0
        self.workers: dict[str, Process] = {}

    async def up(self) -> tuple[Process, Process]:
        """Whoever is not there is started; both are as usual."""
        for name in ("p", "d"):
            if name not in self.workers:
                self.workers[name] = self._start(name)
        for worker in self.workers.values():
            await worker.ready()
            await post(worker, USUAL)
        return self.workers["p"], self.workers["d"]

    def _start(self, name: str) -> Process:
        self._started += 1
        host, ports = self._addresses[name]
        log = self._directory / f"{name}{self._started}.log"
        flags = [*flags_of(self._model, host, ports), "--transfer-backend", self.backend,
                 "--transfer-dir", str(self._directory), *self._flags]  # fmt: skip
        environment = {**environment_of(name), **OVER_TCP, **self._environment}
        return Process(self._nursery.fork(flags, environment, log), host, *ports, log)

    def kill(self, name: str) -> None:
        worker = self.workers.pop(name)
        worker.process.kill()
        worker.process.wait()

    def end(self) -> None:
        for name in list(self.workers):
            self.kill(name)


async def post(worker: Process, facts: Facts) -> None:
    async with aiohttp.ClientSession() as session, session.post(worker.url + "/arranged", json=asdict(facts)) as got:
        assert got.status == 200


async def watch(worker: Process) -> dict[str, list[str]]:
    async with aiohttp.ClientSession() as session, session.get(worker.url + "/watched") as got:
        return await got.json()


class Stream:
    """One request of a client that reads a stream: what it got until its end."""

    def __init__(self, worker: Process, kv_address: str, prompt: str = "", max_tokens: int = 12):
        self.prompt = prompt or f"{next(NUMBERS)} {PROMPT}"
        self.text, self.path, self.error = "", "", ""
        self._body = {"model": "tiny", "prompt": self.prompt, "temperature": 0, "ignore_eos": True, "stream": True,
                      "max_tokens": max_tokens}  # fmt: skip
        self._head = {"x-tandem-prefill": kv_address} if kv_address else {}
        self.task = asyncio.create_task(self._ask(worker.url + "/v1/completions"))

    async def end(self) -> Client:
        """How it ended, which it does in time."""
        return await asyncio.wait_for(self.task, WITHIN_S)

    def leave(self) -> None:
        self.task.cancel()

    async def _ask(self, url: str) -> Client:
        try:
            timeout = aiohttp.ClientTimeout(total=WITHIN_S)
            async with aiohttp.ClientSession(timeout=timeout) as session:
                return await self._read(session.post(url, json=self._body, headers=self._head))
        except aiohttp.ClientError:
            return Client.LOST
        except asyncio.CancelledError:
            return Client.LEFT

    async def _read(self, request) -> Client:
        async with request as got:
            if got.status != 200:
                assert (got.status, got.headers.get("x-tandem-retry")) == (503, "pair"), await got.text()
                return Client.RETRY
            self.path = got.headers["x-tandem-path"]
            async for line in got.content:
                if line.startswith(b"data: [DONE]"):
                    return Client.SERVED
                if line.startswith(b"data: "):
                    self._hear(json.loads(line[6:]))
        return Client.BROKEN if self.error else Client.LOST

    def _hear(self, event: dict) -> None:
        if "error" in event:
            self.error = event["error"]["message"]
        for choice in event.get("choices", ()):
            self.text += choice["text"]


class Scene:
    """A request that has come to where a row has it."""

    def __init__(self, world: World, row: Row, gate: Gate, stream: Stream, paused: list):
        self.world, self.row, self.gate, self.stream = world, row, gate, stream
        self._paused = paused

    def kill(self, name: str) -> None:
        self.world.kill(name)
        self.go_on()

    def stop(self, name: str) -> None:
        self._paused.append(self.world.workers[name])
        self._paused[-1].process.stop()

    def go_on(self, *, but: str = "") -> None:
        """Whoever was stopped, unless it is dead, runs again."""
        still = [worker for worker in self._paused if worker is self.world.workers.get(but)]
        for worker in self._paused:
            if worker not in still:
                worker.process.send_signal(signal.SIGCONT)
        self._paused[:] = still


@contextlib.asynccontextmanager
async def at(world: World, row: Row):
    """The row's scene; a request that failed on its way there (a busy machine misses a handshake) is repeated."""
    paused: list[Process] = []
    for _ in range(TRIES):
        prefill, decode = await world.up()
        await post(prefill, row.facts)
        if row.facts.full or row.facts.lease_s or row.facts.patient:
            await post(decode, row.facts)

        def stop_the_writer(prefill=prefill):
            paused.append(prefill)
            prefill.process.stop()

        async with Gate(prefill.host, prefill.kv_port, *row.holds, before=stop_the_writer) as gate:
            stream = Stream(decode, f"127.0.0.1:{gate.address[1]}", max_tokens=300 if row.decodes else 12)
            scene = Scene(world, row, gate, stream, paused)
            try:
                if await comes_to(row, prefill, decode, stream, gate, paused):
                    yield scene
                    return
            finally:
                scene.go_on()
                stream.leave()
    raise AssertionError(f"the request never came to: {row.name}")


async def comes_to(row: Row, prefill: Process, decode: Process, stream: Stream, gate: Gate, paused: list) -> bool:
    """Is it there? False: it has ended before."""

    async def both() -> tuple[list[str], list[str]]:
        tickets = (await watch(decode))["decode"]
        # A stopped worker does not answer; it was in the middle of a push.
        return tickets, [str(row.prefill)] if paused else (await watch(prefill))["prefill"]

    async def once() -> bool:
        return stream.task.done() or await both() == tuple([state] for state in row.leaves)

    async def there() -> bool:
        half = gate.halved or not row.half
        return (stream.task.done() and not ends(row)) or (half and is_at(row, *await both()))

    if row.leaves:
        await eventually(once, f"a moment to leave for: {row.name}", WITHIN_S)
        if stream.task.done():
            return False
        stream.leave()
    if row.decode is D.ENDED:
        await stream.end()
    await eventually(there, row.name, WITHIN_S)
    return is_at(row, *await both())


def ends(row: Row) -> bool:
    """May its client have its answer before anybody dies?"""
    return bool(row.leaves) or row.decode in {D.ENDED, D.CUT}


async def serves_again(world: World, interrupted: Stream) -> None:
    """The pair says what one worker says, also to whom it failed; then nobody holds anything."""
    prefill, decode = await world.up()
    again = await complete(decode, prefill.kv_address, interrupted.prompt)
    assert again.text == (await complete(prefill, "", interrupted.prompt)).text
    assert again.text.startswith(interrupted.text) or interrupted.text.startswith(again.text)
    fresh = await complete(decode, prefill.kv_address)
    assert fresh.path == "disaggregated"
    assert fresh.text == (await complete(prefill, "", fresh.prompt)).text
    for worker in (prefill, decode):
        await eventually(worker.is_empty, f"{worker.url} holds nothing", WITHIN_S)


async def complete(worker: Process, kv_address: str, prompt: str = "") -> Stream:
    stream = Stream(worker, kv_address, prompt)
    assert await stream.end() is Client.SERVED, stream.error
    return stream
