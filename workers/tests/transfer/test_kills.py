"""Real processes that are killed or stopped at each point of a transfer, and come back at the same address.

Each row ends alike: the client has the same tokens or a clean error in time, the survivor holds nothing, and the next
request through the same pair of addresses is served with the tokens that one worker alone gives.
"""

import asyncio
import contextlib
import itertools
import json
import signal
import socket

import aiohttp
import pytest

from tandem_worker.transfer.backends import NAMES
from workers.tests.transfer.gate import Gate, Hold
from workers.tests.transfer.kit import eventually, start_process, write_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PREFILL, DECODE = "127.0.0.1", "127.0.0.2"
PROMPT = "Over wide plains and high hills go trains, slow and long, and they carry people. " * 2
NUMBERS = itertools.count(1)  # in front of each prompt: one that is cached would be served by the decode worker alone
WITHIN_S = 60.0

POINTS = [
    pytest.param(Hold("D", "prefill"), False, id="asked"),
    pytest.param(Hold("P", "ticket?"), False, id="asking"),
    pytest.param(Hold("D", "ticket"), False, id="open"),
    pytest.param(Hold("P", "chunk"), False, id="pages under way"),
    pytest.param(Hold("P", "chunk", middle=True), False, id="in mid-page"),
    pytest.param(Hold("P", "commit"), False, id="commit under way"),
    pytest.param(Hold("D", "taken"), False, id="committed"),
    pytest.param(Hold("D", "cancel"), True, id="cancelled"),
    pytest.param(Hold("P", "quiet"), True, id="quiet under way"),
]


def free_ports(host):
    with socket.socket() as one, socket.socket() as other:
        one.bind((host, 0))
        other.bind((host, 0))
        return one.getsockname()[1], other.getsockname()[1]


class World:
    """Two workers that can be killed and come back where they were."""

    def __init__(self, directory, backend="tcp"):
        self.directory = directory
        self.model = write_model(directory / "tiny")
        self.backend = backend
        self.ports = {"p": free_ports(PREFILL), "d": free_ports(DECODE)}
        self.workers = {}
        self.started = 0

    async def up(self):
        """Whoever is not there is started."""
        for name, host in (("p", PREFILL), ("d", DECODE)):
            if name not in self.workers:
                self.started += 1
                log = self.directory / f"{name}{self.started}.log"
                flags = ("--transfer-backend", self.backend, "--transfer-dir", str(self.directory))
                self.workers[name] = start_process(self.model, name, host, self.ports[name], log, *flags)
        for worker in self.workers.values():
            await worker.ready()
        return self.workers["p"], self.workers["d"]

    def kill(self, name):
        worker = self.workers.pop(name)
        worker.process.kill()
        worker.process.wait()

    def end(self):
        for name in list(self.workers):
            self.kill(name)


@pytest.fixture(scope="module")
def tcp_world(tmp_path_factory):
    world = World(tmp_path_factory.mktemp("kills"))
    yield world
    world.end()


@pytest.fixture(scope="module", params=NAMES)
def any_world(request, tmp_path_factory):
    world = World(tmp_path_factory.mktemp(f"stops-{request.param}"), request.param)
    yield world
    world.end()


async def ask(worker, kv_address, prompt=None):
    """(status, text or the retry word); a new prompt where none is given."""
    prompt = prompt or f"{next(NUMBERS)} {PROMPT}"
    body = {"model": "tiny", "prompt": prompt, "temperature": 0, "ignore_eos": True, "max_tokens": 12}
    head = {"x-tandem-prefill": kv_address} if kv_address else {}
    async with (
        asyncio.timeout(WITHIN_S),
        aiohttp.ClientSession() as session,
        session.post(worker.url + "/v1/completions", json=body, headers=head) as got,
    ):
        words = await got.text()
        return got.status, json.loads(words)["choices"][0]["text"] if got.status == 200 else got.headers[
            "x-tandem-retry"
        ]


@contextlib.asynccontextmanager
async def at(world, hold, *, leaves):
    """A request that has come to this point: (prefill worker, decode worker, the request)."""
    prefill, decode = await world.up()
    async with Gate(prefill.host, prefill.kv_port, hold) as gate:
        request = await asked(gate, decode, leaves=leaves)
        if hold.tag == "taken":  # said for the first page already: it is committed once P's last word has passed
            await eventually(lambda: request.done() or ("P", "commit") in gate.seen, "the commit", WITHIN_S)
        yield prefill, decode, request
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)


async def asked(gate, decode, *, leaves):
    """The request at the gate; one that failed on its way there (a busy machine misses a handshake) is repeated."""
    for _ in range(10):
        request = asyncio.create_task(ask(decode, f"127.0.0.1:{gate.address[1]}"))
        if await came(gate, request, leaves=leaves):
            return request
    raise AssertionError("the request never came to the gate")


async def came(gate, request, *, leaves):
    """Is it there? Its client leaves once pages come, where it is to leave; too late if it is committed by then."""
    if leaves:
        await eventually(lambda: request.done() or ("P", "chunk") in gate.seen, "pages come", WITHIN_S)
        request.cancel()
    here = asyncio.create_task(gate.reached.wait())
    await asyncio.wait({here} if leaves else {here, request}, timeout=3.0 if leaves else WITHIN_S,
                       return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
    here.cancel()
    return leaves or gate.reached.is_set()


async def serves_again(world):
    prefill, decode = await world.up()
    prompt = f"{next(NUMBERS)} {PROMPT}"
    assert await ask(decode, prefill.kv_address, prompt) == await ask(prefill, "", prompt)
    for worker in (prefill, decode):
        await eventually(worker.is_empty, f"{worker.url} holds nothing", WITHIN_S)


@pytest.mark.parametrize(("hold", "leaves"), POINTS)
async def test_the_prefill_worker_is_killed(tcp_world, hold, leaves):
    async with at(tcp_world, hold, leaves=leaves) as (_, decode, request):
        tcp_world.kill("p")
        if not leaves:
            status, words = await request
            assert (status, words == "pair") in {(503, True), (200, False)}
            assert (status == 200) == (hold.tag == "taken")
        await eventually(decode.is_empty, "the decode worker holds nothing", WITHIN_S)
    await serves_again(tcp_world)


@pytest.mark.parametrize(("hold", "leaves"), POINTS)
async def test_the_decode_worker_is_killed(tcp_world, hold, leaves):
    async with at(tcp_world, hold, leaves=leaves) as (prefill, _, request):
        tcp_world.kill("d")
        if not leaves:
            with pytest.raises(aiohttp.ClientError):
                await request
        await eventually(prefill.is_empty, "the prefill worker holds nothing", WITHIN_S)
    await serves_again(tcp_world)


@pytest.mark.parametrize("hold", [Hold("P", "ticket?"), Hold("P", "chunk", middle=True), Hold("P", "chunk")],
                         ids=["asking", "in mid-page", "pages under way"])  # fmt: skip
@pytest.mark.parametrize("victim", ["p", "d"])
async def test_a_worker_is_stopped_for_longer_than_a_silence_may_last(any_world, hold, victim):
    async with at(any_world, hold, leaves=False) as (prefill, decode, request):
        stopped, other = (prefill, decode) if victim == "p" else (decode, prefill)
        stopped.process.send_signal(signal.SIGSTOP)
        try:
            await eventually(other.is_empty, "the other one holds nothing", WITHIN_S)
        finally:
            stopped.process.send_signal(signal.SIGCONT)
        assert await request == (503, "pair")
        await eventually(stopped.is_empty, "nor does the stopped one", WITHIN_S)
    await serves_again(any_world)
