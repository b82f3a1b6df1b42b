"""Memory or threads for a transfer are used up: a clean refusal, or a way that is said to be in use."""

import asyncio
import resource
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from workers.tests.ports import free_ports
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
)
from workers.tests.transfer.world import PREFILL


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
    assert "no memory file of" in line
    assert "File too large; use another backend" in line


# In a mount namespace of its own: a file system that has room for its root directory alone.
MOUNTED = 'mount -t tmpfs -o nr_inodes=1 full "$0" && exec "$@"'
TRIED = """
import sys
from pathlib import Path
from tandem_worker.transfer.backends import make_backend
from tandem_worker.transfer.base import BackendError
try:
    make_backend("shm", Path(sys.argv[1]), "127.0.0.1")
except BackendError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_full_transfer_directory_is_said_at_the_start(tmp_path):
    within = ["unshare", "-Urm", "sh", "-c", MOUNTED, str(tmp_path)]
    got = subprocess.run(
        [*within, sys.executable, "-c", TRIED, str(tmp_path)], capture_output=True, text=True, timeout=200, check=False
    )
    if "not permitted" in got.stderr or "denied" in got.stderr:
        pytest.skip(f"this machine has no mount namespaces: {got.stderr.strip()}")
    no_room = "[Errno 28] No space left on device"
    assert got.stdout.strip() == f"--transfer-backend shm: no socket in {tmp_path}: {no_room}", got.stderr


# The same memory, on a file system that has no room for it, with all of it taken at the start, and page by page.
TAKEN = """
import mmap, os, sys
from tandem_worker.engine import memory
size = 4 << 20
os.memfd_create = lambda name, flags: os.open(sys.argv[1] + "/" + name, os.O_RDWR | os.O_CREAT)
try:
    memory.memory_file(size)
except OSError as error:
    print(error, flush=True)
sparse = os.memfd_create("sparse", 0)
os.ftruncate(sparse, size)
mmap.mmap(sparse, size)[:] = bytes(size)
"""


@pytest.mark.slow
def test_a_page_that_is_not_there_is_missed_at_the_start_and_is_no_bus_error_later(tmp_path):
    within = ["unshare", "-Urm", "sh", "-c", MOUNTED.replace("nr_inodes=1", "size=1m"), str(tmp_path)]
    got = subprocess.run(
        [*within, sys.executable, "-c", TAKEN, str(tmp_path)], capture_output=True, text=True, timeout=200, check=False
    )
    if "not permitted" in got.stderr or "denied" in got.stderr:
        pytest.skip(f"this machine has no mount namespaces: {got.stderr.strip()}")
    assert got.stdout.strip() == "[Errno 28] No space left on device", got.stderr
    assert got.returncode == -signal.SIGBUS
