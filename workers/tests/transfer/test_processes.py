"""Two `tandem-worker` processes on two addresses: what a kill -9 leaves behind (nothing), and how a worker goes."""

import asyncio
import json
import signal
import time

import aiohttp
import pytest

from workers.tests.ports import free_ports
from workers.tests.transfer.kit import SMOLLM2, eventually, start_process

pytestmark = pytest.mark.slow
FLAGS = ("--dtype", "bfloat16", "--max-context", "2048", "--kv-memory-mib", "128", "--page-tokens", "16",
         "--chunk-tokens", "64")  # fmt: skip
LONG = "Trains are slow and long, and they carry people over wide plains and high hills. " * 90  # about 1,700 tokens
ANSWERS_WITHIN_S = 60.0
PREFILL, DECODE = "127.0.0.1", "127.0.0.2"


@pytest.fixture
async def workers(tmp_path):
    """start(host, name, ports=None) → a ready worker; all are ended afterwards."""
    started = []

    async def start(host, name, ports=None, *flags):
        ports = ports or free_ports(host)
        one = start_process(SMOLLM2, name, host, ports, tmp_path / f"{name}-{len(started)}.log", *FLAGS, *flags)
        started.append(one)
        await one.ready()
        return one

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()


def body(prompt, **more):
    return {"model": "tiny", "prompt": prompt, "temperature": 0, "ignore_eos": True, "max_tokens": 16, **more}


async def ask(worker, prefill, prompt, **more):
    """(status, headers, text)."""
    head = {"x-tandem-prefill": prefill.kv_address}
    async with (
        asyncio.timeout(ANSWERS_WITHIN_S),
        aiohttp.ClientSession() as session,
        session.post(worker.url + "/v1/completions", json=body(prompt, **more), headers=head) as got,
    ):
        return got.status, got.headers, await got.text()


async def pages_are_coming(decode):
    async def some():
        seen = await decode.metrics()
        return seen['tandem_kv_transfer_bytes_total{direction="received"}'] > 0

    await eventually(some, "pages are coming")


async def test_the_prefill_worker_dies_and_comes_back_at_the_same_address(workers):
    prefill, decode = await asyncio.gather(workers(PREFILL, "p0"), workers(DECODE, "d0"))
    request = asyncio.create_task(ask(decode, prefill, LONG))
    await pages_are_coming(decode)
    prefill.process.send_signal(signal.SIGKILL)
    prefill.process.wait()
    status, headers, text = await request
    assert (status, headers["x-tandem-retry"]) == (503, "pair"), text
    await eventually(decode.is_empty, "the decode worker holds nothing")

    again = await workers(PREFILL, "p1", (prefill.port, prefill.kv_port))
    status, headers, text = await ask(decode, again, LONG)
    assert (status, headers["x-tandem-path"], headers["x-tandem-prefill-worker"]) == (200, "disaggregated", "p1"), text
    alone = await ask(again, again, LONG)
    assert json.loads(text)["choices"][0]["text"] == json.loads(alone[2])["choices"][0]["text"]
    await eventually(decode.is_empty, "the decode worker holds nothing")


async def test_a_prefill_worker_is_not_needed_after_the_commit(workers):
    prefill, decode = await asyncio.gather(workers(PREFILL, "p0"), workers(DECODE, "d0"))
    head = {"x-tandem-prefill": prefill.kv_address}
    asked = body("A prompt about the sea and everything that swims in it. " * 6, stream=True, max_tokens=64)
    async with (
        asyncio.timeout(ANSWERS_WITHIN_S),
        aiohttp.ClientSession() as session,
        session.post(decode.url + "/v1/completions", json=asked, headers=head) as got,
    ):
        assert got.status == 200
        while b"data: " not in await got.content.readline():
            pass

        async def committed():
            return (await decode.metrics())["tandem_kv_transfer_seconds_count"] == 1

        await eventually(committed, "the commit")
        prefill.process.send_signal(signal.SIGKILL)
        rest = (await got.content.read()).decode()
    assert rest.rstrip().endswith("[DONE]")


async def test_the_decode_worker_dies(workers):
    prefill, decode = await asyncio.gather(workers(PREFILL, "p0"), workers(DECODE, "d0"))
    request = asyncio.create_task(ask(decode, prefill, LONG))
    await pages_are_coming(decode)
    decode.process.send_signal(signal.SIGKILL)
    with pytest.raises(aiohttp.ClientError):
        await request
    await eventually(prefill.is_empty, "the prefill worker holds nothing")
    computed = (await prefill.metrics())["tandem_prefill_tokens_total"]
    assert computed < 1500, "it stopped within a step"


async def test_a_client_that_leaves_frees_both(workers):
    prefill, decode = await asyncio.gather(workers(PREFILL, "p0"), workers(DECODE, "d0"))
    request = asyncio.create_task(ask(decode, prefill, LONG))
    await pages_are_coming(decode)
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    for worker in (decode, prefill):
        await eventually(worker.is_empty, f"{worker.url} holds nothing")
    assert (await prefill.metrics())["tandem_prefill_tokens_total"] < 1500


async def test_sigterm_finishes_what_runs(workers):
    worker = await workers(PREFILL, "p0")

    async def ready():
        async with aiohttp.ClientSession() as session, session.get(worker.url + "/ready") as got:
            return got.status

    request = asyncio.create_task(ask(worker, worker, "The sea is", max_tokens=60))

    async def runs():
        return (await worker.metrics())["tandem_num_requests_running"] == 1

    await eventually(runs, "it runs")
    worker.process.send_signal(signal.SIGTERM)
    await eventually(lambda: is_status(ready, 503), "not ready any more")
    status, _, text = await request
    assert (status, json.loads(text)["usage"]["completion_tokens"]) == (200, 60)
    begun = time.monotonic()
    assert await asyncio.to_thread(worker.process.wait, 30) == 0
    assert time.monotonic() - begun < 25


async def is_status(ask_status, wanted):
    try:
        return await ask_status() == wanted
    except aiohttp.ClientError:
        return True  # gone already: certainly not ready


@pytest.mark.parametrize(
    ("flags", "key", "words"),
    [
        pytest.param(("--model", "file:///no/such/model"), "7" * 64, "no model directory", id="no model"),
        pytest.param(("--model", "s3://some/model"), "7" * 64, "file:// and hf://, not s3", id="s3"),
        pytest.param(("--transfer-backend", "pigeon"), "7" * 64, "pigeon is not one of", id="backend"),
        pytest.param((), "xyz", "hexadecimal", id="key"),
    ],
)
async def test_what_cannot_be_served_is_one_line_and_code_2(tmp_path, flags, key, words):
    one = start_process(SMOLLM2, "x", PREFILL, free_ports(PREFILL), tmp_path / "log", *flags, key=key)
    try:
        assert await asyncio.to_thread(one.process.wait, 240) == 2
    finally:
        one.process.kill()
        one.process.wait()
    lines = [line for line in (tmp_path / "log").read_text().splitlines() if line.startswith("tandem-worker: ")]
    assert len(lines) == 1
    assert words in lines[0]
