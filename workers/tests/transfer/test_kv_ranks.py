"""8-bit KV over several ranks and between two workers: one worker's tokens, and another layout is refused by name."""

import asyncio

import aiohttp
import pytest

from tandem_worker.engine import Sampling
from tandem_worker.transfer.handshake import LAYOUTS
from tandem_worker.transfer.peers import PeerError
from workers.tests.engine.test_parallel import first_difference
from workers.tests.ports import free_ports
from workers.tests.transfer.kit import alone, eventually, pull, running, start_process
from workers.tests.transfer.world import DECODE, PREFILL

GREEDY = Sampling(max_tokens=16, top_logprobs=2, ignore_eos=True)
WITHIN_S = 60.0
# Ranks add up in another order, and a last bit of fp32 may move a key or value to its next 8-bit number: outputs
# may part where the two best are as near as one such step moves a logit of this model.
NEAR = 0.05
TEXT = "Over wide plains and high hills go trains, slow and long, and they carry people. " * 3


def parts_at_a_near_tie(one, other):
    """Are the outputs the same up to a place where the better two logits are near each other?"""
    parted = first_difference(one, other)
    if parted is None:
        return True
    top = one[parted[0]].top
    return abs(top[0][1] - top[1][1]) < NEAR


@pytest.mark.parametrize(
    ("kv", "prefill", "decode"),
    [("int8", 1, 2), ("fp8", 2, 1)],
)
async def test_ranks_of_8_bit_pages_give_one_worker_s_tokens(model, kv, prefill, decode):
    async with (
        running(model, "one", kv=kv) as single,
        running(model, "p", tensor_parallel=prefill, kv=kv) as one,
        running(model, "d", tensor_parallel=decode, kv=kv) as other,
    ):
        for number, count in enumerate((3, 33, 90)):
            prompt = [3 + (number * 40 + at * 7) % 250 for at in range(count)]
            heard = await pull(other, one, f"r{number}", prompt, GREEDY)
            wanted = await alone(single, f"alone{number}", prompt, GREEDY)
            for either in (heard, wanted):
                await either.until(lambda either: either.over)
            assert heard.failure is None
            assert parts_at_a_near_tie(wanted.tokens, heard.tokens), (wanted.tokens, heard.tokens)
        for worker in (one, other):
            await eventually(worker.is_empty, f"{worker.settings.worker} holds nothing", WITHIN_S)


@pytest.mark.parametrize(("prefill", "decode"), [("int8", ""), ("", "fp8"), ("fp8", "int8")])
async def test_another_layout_is_refused_between_two_workers(model, prefill, decode):
    """By both its names; nothing is held on either side."""
    async with running(model, "p", kv=prefill) as one, running(model, "d", kv=decode) as other:
        with pytest.raises(PeerError) as refused:
            await pull(other, one, "r", [5] * 20, GREEDY)
        assert all(LAYOUTS[name] in str(refused.value) for name in (prefill, decode))
        for worker in (one, other):
            await eventually(worker.is_empty, f"{worker.settings.worker} holds nothing", WITHIN_S)


async def answer(worker, prefill=None, text=TEXT):
    head = {} if prefill is None else {"x-tandem-prefill": prefill.kv_address}
    body = {"model": "tiny", "prompt": text, "temperature": 0, "max_tokens": 12, "ignore_eos": True}
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=WITHIN_S)) as session,
        session.post(worker.url + "/v1/completions", json=body, headers=head) as got,
    ):
        return got.status, got.headers.get("x-tandem-path"), await got.json()


@pytest.mark.slow
@pytest.mark.parametrize("kv", ["int8", "fp8"])
async def test_two_processes_with_8_bit_pages_say_what_one_says(model, tmp_path, kv):
    """Real processes over sockets, in bf16; a third one has bf16 pages, and the pair is refused."""
    flags = ("--dtype", "bfloat16", "--kv")
    workers = [
        start_process(model, name, host, free_ports(host), tmp_path / f"{name}.log", *flags, layout)
        for name, host, layout in (("p", PREFILL, kv), ("d", DECODE, kv), ("x", PREFILL, ""))
    ]
    try:
        await asyncio.gather(*(worker.ready() for worker in workers))
        prefill, decode, strange = workers
        wanted = await answer(prefill)
        got = await answer(decode, prefill)
        assert (wanted[0], got[:2]) == (200, (200, "disaggregated"))
        assert got[2]["choices"][0]["text"] == wanted[2]["choices"][0]["text"]
        status, _, refused = await answer(decode, strange, TEXT[::-1])  # nothing of it is cached
        assert status == 503
        assert LAYOUTS[kv] in refused["error"]["message"]
    finally:
        for worker in workers:
            worker.process.kill()
            await asyncio.to_thread(worker.process.wait)
