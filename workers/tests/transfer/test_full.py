"""Memory, threads or descriptors for a transfer are used up: a clean refusal, or a way that is said to be in use."""

import asyncio
import resource
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from workers.tests.transfer.ends import BESIDE
from workers.tests.transfer.kit import (
    GREEDY,
    alone,
    backends_of,
    eventually,
    prompt,
    pull,
    running,
    start_process,
    write_model,
)
from workers.tests.transfer.world import PREFILL, complete, free_ports


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("tiny") / "tiny")


class NoThread(threading.Thread):
    def start(self):
        raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("backend", BESIDE)
async def test_without_threads_to_read_with_pages_travel_over_tcp_and_that_is_said(model, backend, monkeypatch, caplog):
    async with running(model, "p0", backend=backend) as prefill, running(model, "d0", backend=backend) as decode:
        monkeypatch.setattr("tandem_worker.transfer.ends.threading", SimpleNamespace(Thread=NoThread))
        heard = await pull(decode, prefill, "r", prompt("full", 100), GREEDY)
        wanted = await alone(prefill, "a", prompt("full", 100), GREEDY)
        for one in (heard, wanted):
            await one.until(lambda one: one.over)
        assert heard.ids == wanted.ids
        for worker in (prefill, decode):
            assert backends_of(worker) == {"tcp": 1}
            await eventually(worker.is_empty, "nothing is held")
        assert "pages travel over tcp: there is no thread to read with" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["p", "d"])
@pytest.mark.parametrize("world", BESIDE, indirect=True)
async def test_a_worker_without_memory_to_map_serves_and_says_how(world, victim):
    """RLIMIT_AS, set on a worker that runs: no mapping of the size of the peer's pages, no stack of a thread."""
    for name in list(world.workers):
        world.kill(name)
    prefill, decode = await world.up()
    pid = world.workers[victim].process.pid
    limits = resource.prlimit(pid, resource.RLIMIT_AS)
    resource.prlimit(pid, resource.RLIMIT_AS, (mapped(pid) + 2**20, limits[1]))
    try:
        got = await complete(decode, prefill.kv_address)
        assert got.path == "disaggregated"
        in_use = [await backends_in_use(worker) for worker in (prefill, decode)]
        assert in_use[0] == in_use[1] in ([world.backend], ["tcp"])
        assert in_use[0] == [world.backend] or "travel over tcp" in decode.log.read_text() + prefill.log.read_text()
    finally:
        resource.prlimit(pid, resource.RLIMIT_AS, limits)
    assert got.text == (await complete(prefill, "", got.prompt)).text
    for worker in (prefill, decode):
        await eventually(worker.is_empty, "nothing is held")


def mapped(pid):
    """Bytes of address space."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()


async def backends_in_use(worker):
    seen = await worker.metrics()
    named = [(series.split('"')[1], value) for series, value in seen.items() if "transfer_backend_info{" in series]
    return [name for name, value in named if value]


@pytest.mark.slow
async def test_a_worker_whose_pages_have_no_memory_file_does_not_start(model, tmp_path):
    """RLIMIT_FSIZE bounds memory files, too: as a full /dev/shm would."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    flags = ("--transfer-backend", "shm", "--transfer-dir", str(tmp_path))
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
    try:
        worker = start_process(model, "p0", PREFILL, free_ports(PREFILL), tmp_path / "log", *flags)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    try:
        assert await asyncio.to_thread(worker.process.wait, 120) == 2
    finally:
        worker.process.kill()
        worker.process.wait()
    (line,) = [line for line in worker.log.read_text().splitlines() if line.startswith("tandem-worker: ")]
    assert "no memory file of 2097152 B" in line
