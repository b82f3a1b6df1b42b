"""Workers of different tensor parallelism as one pair: the tokens of one rank alone, and nothing held whoever ends.

Every rank is a process of its own (gloo); the model has two KV heads, so four ranks replicate them and two split them.
"""

import asyncio
import itertools
import json
import os
import signal

import aiohttp
import pytest

from tandem_worker.engine import Sampling
from tandem_worker.transfer.backends import NAMES
from workers.tests.engine.test_parallel import TIE, children, first_difference, is_alive
from workers.tests.ports import free_ports
from workers.tests.transfer.kit import alone, eventually, pull, running, start_process
from workers.tests.transfer.world import DECODE, PREFILL

DEGREES = (1, 2, 4)
NUMBERS = itertools.count(1)  # in front of each prompt: one that is cached would be served by the decode worker alone
WITHIN_S = 60.0
TEXT = "Over wide plains and high hills go trains, slow and long, and they carry people. " * 4
GREEDY = Sampling(max_tokens=16, top_logprobs=2, ignore_eos=True)


@pytest.mark.parametrize(("prefill", "decode"), [(1, 2), pytest.param(2, 1, marks=pytest.mark.slow)])
async def test_one_rank_and_two(model, prefill, decode):
    """Heads are joined, or split, on the way; a request that is cancelled in the middle leaves nothing."""
    async with (
        running(model, "p", tensor_parallel=prefill) as one,
        running(model, "d", tensor_parallel=decode) as other,
    ):
        single = one if prefill == 1 else other
        for number, count in enumerate((3, 33, 90)):
            prompt = [3 + (number * 40 + at * 7) % 250 for at in range(count)]
            heard = await pull(other, one, f"r{number}", prompt, GREEDY)
            await heard.until(lambda heard: heard.over)
            assert heard.failure is None
            wanted = await alone(single, f"alone{number}", prompt, GREEDY)
            await wanted.until(lambda heard: heard.over)
            parted = first_difference(wanted.tokens, heard.tokens)
            assert parted is None or parted[1], (parted, wanted.ids, heard.ids)
        heard = await pull(other, one, "left", [5] * 400, GREEDY)
        await heard.until(lambda heard: heard.granted is not None)
        other.node.decode.cancel("left")
        for worker in (one, other):
            await eventually(worker.is_empty, f"{worker.settings.worker} holds nothing", WITHIN_S)


class World:
    """A prefill and a decode worker of every degree, and one that is alone."""

    def __init__(self, model, directory, backend):
        self.directory = directory
        self.model = model
        self.flags = ("--transfer-backend", backend, "--transfer-dir", str(directory))
        self.workers = {}

    async def up(self, *names):
        """These workers (`p4`: prefill on four ranks), started where they are not there."""
        for name in names:
            if name not in self.workers:
                host = PREFILL if name[0] == "p" else DECODE
                flags = (*self.flags, "--tensor-parallel", name[1])
                log = self.directory / f"{name}-{next(NUMBERS)}.log"
                self.workers[name] = start_process(self.model, name, host, free_ports(host), log, *flags)
        for name in names:
            await self.workers[name].ready()
        return [self.workers[name] for name in names]

    def end(self):
        for worker in self.workers.values():
            worker.process.kill()
            worker.process.wait()


@pytest.fixture(scope="module", params=NAMES)
def world(request, model, tmp_path_factory):
    world = World(model, tmp_path_factory.mktemp(f"ranks-{request.param}"), request.param)
    yield world
    world.end()


@pytest.fixture(scope="module")
def tcp_world(model, tmp_path_factory):
    world = World(model, tmp_path_factory.mktemp("ranks-ends"), "tcp")
    yield world
    world.end()


def asked(worker, kv_address, prompt, **more):
    """The request, to be entered."""
    body = {"model": "tiny", "prompt": prompt, "temperature": 0, "ignore_eos": True, "max_tokens": 24, "logprobs": 2}
    head = {"x-tandem-prefill": kv_address} if kv_address else {}
    session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(WITHIN_S))
    return session, session.post(worker.url + "/v1/completions", json={**body, **more}, headers=head)


async def answered(worker, kv_address, prompt):
    """(path, tokens as (text, difference of the two best logits))."""
    session, request = asked(worker, kv_address, prompt)
    async with session, request as got:
        words = await got.text()
        assert got.status == 200, words
        path = got.headers["x-tandem-path"]
    logprobs = json.loads(words)["choices"][0]["logprobs"]
    gaps = [max(top.values()) - min(top.values()) if len(top) > 1 else 0.0 for top in logprobs["top_logprobs"]]
    return path, list(zip(logprobs["tokens"], gaps, strict=True))


async def refused(worker, kv_address, prompt):
    """The words of a refusal."""
    session, request = asked(worker, kv_address, prompt)
    async with session, request as got:
        assert (got.status, got.headers["x-tandem-retry"]) == (503, "pair")
        return await got.text()


def part(one, other):
    """Where two answers part, and whether that was a tie; None: nowhere."""
    for at, ((left, gap), (right, _)) in enumerate(zip(one, other, strict=True)):
        if left != right:
            return at, gap < TIE
    return None


async def hold_nothing(*workers):
    for worker in workers:
        await eventually(worker.is_empty, f"{worker.url} holds nothing", WITHIN_S)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_every_pair_says_what_one_rank_says(world):
    """All nine pairs; of backends that read in place those whose ranks hold the same heads, the others are refused."""
    prefills = await world.up(*(f"p{degree}" for degree in DEGREES))
    decodes = await world.up(*(f"d{degree}" for degree in DEGREES))
    ties = 0
    for prefill, decode in itertools.product(prefills, decodes):
        for length in (40, 300):
            prompt = f"{next(NUMBERS)} {TEXT}"[:length]
            if world.flags[1] != "tcp" and (prefill is prefills[0]) != (decode is decodes[0]):
                assert "use tcp" in await refused(decode, prefill.kv_address, prompt)
                continue
            path, told = await answered(decode, prefill.kv_address, prompt)
            assert path == "disaggregated"
            _, wanted = await answered(prefills[0], "", prompt)
            parted = part(wanted, told)
            assert parted is None or parted[1], (prefill.log.name, decode.log.name, parted, wanted, told)
            ties += parted is not None
    print(f"{world.flags[1]}: {ties} of the answers part at a tie of the two best logits")
    for worker in decodes:
        seen = await worker.metrics()
        assert seen[f'tandem_transfer_backend_info{{backend="{world.flags[1]}"}}'] > 0
    await hold_nothing(*prefills, *decodes)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("prefill", "decode"), [("p2", "d4"), ("p4", "d2"), ("p2", "d2")])
async def test_a_client_that_leaves_frees_the_pages_of_all_ranks(tcp_world, prefill, decode):
    one, other = await tcp_world.up(prefill, decode)
    for _ in range(5):
        session, request = asked(other, one.kv_address, f"{next(NUMBERS)} {TEXT}", stream=True, max_tokens=150)
        async with session, request as got:
            await got.content.readuntil(b"\n\n")
        await hold_nothing(one, other)
    prompt = f"{next(NUMBERS)} {TEXT}"
    (single,) = await tcp_world.up("p1")
    parted = part((await answered(single, "", prompt))[1], (await answered(other, one.kv_address, prompt))[1])
    assert parted is None or parted[1]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("victim", ["prefill", "decode"])
async def test_a_rank_is_killed_in_the_middle_of_transfers(tcp_world, victim):
    """Its worker ends as one; the other side tells its clients, holds nothing and serves with another worker."""
    one, other, spare = await tcp_world.up("p2", "d2", "p1" if victim == "prefill" else "d1")
    broken, whole = (one, other) if victim == "prefill" else (other, one)
    rank = children(broken.process.pid)[0]
    requests = [asyncio.create_task(ended(other, one, f"{next(NUMBERS)} {TEXT}"[:330])) for _ in range(8)]
    await eventually(lambda: moved(other), "pages are coming", WITHIN_S)
    os.kill(rank, signal.SIGKILL)
    outcomes = await asyncio.gather(*requests)
    assert not set(outcomes) - {"all", "told", "pair", "gone"}, outcomes
    assert victim == "decode" or "gone" not in outcomes
    await eventually(lambda: broken.process.poll() is not None, "the worker has ended", WITHIN_S)
    assert broken.process.returncode == 3
    assert "rank 1 of 2 has ended with code -9" in broken.log.read_text()
    await eventually(lambda: not is_alive(rank), "its rank too", WITHIN_S)
    await hold_nothing(whole)
    tcp_world.workers = {name: worker for name, worker in tcp_world.workers.items() if worker is not broken}
    prefill, decode = (spare, other) if victim == "prefill" else (one, spare)
    assert (await answered(decode, prefill.kv_address, f"{next(NUMBERS)} {TEXT}"))[0] == "disaggregated"
    await hold_nothing(whole, spare)


async def moved(decode):
    seen = await decode.metrics()
    return seen['tandem_kv_transfer_bytes_total{direction="received"}'] > 0


async def ended(decode, prefill, prompt):
    """How a client's request ended: with all its tokens, told of an error, sent to another pair, or cut off."""
    session, request = asked(decode, prefill.kv_address, prompt, stream=True, max_tokens=150)
    try:
        async with session, request as got:
            words = await got.text()
    except aiohttp.ClientError:
        return "gone"
    if got.status == 503:
        return got.headers["x-tandem-retry"]
    return "told" if '"error"' in words else "all" if "[DONE]" in words else words
