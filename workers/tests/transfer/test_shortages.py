"""Address space, disk or memory is used up in the middle of a transfer; the rows are in shortages.py.

Each ends as its row says, in time, with nothing held on either side; and when there is enough again the pair serves.
"""

import contextlib
from pathlib import Path

import pytest

from workers.tests.transfer.kit import eventually
from workers.tests.transfer.nursery import Nursery
from workers.tests.transfer.shortages import (
    FLAGS,
    MALLOC,
    SHORTAGES,
    bounded_memory,
    full_disk,
    in_a_mount_namespace,
    memory_group,
    no_address_space,
)
from workers.tests.transfer.world import WITHIN_S, World, at, complete, serves_again

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
CASES = [
    pytest.param(name, shortage, id=f"{name}: {shortage.what}: {shortage.victim}")
    for shortage in SHORTAGES for name in shortage.row.only
]  # fmt: skip


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Where the workers' small file system is, as they see it."""
    return tmp_path_factory.mktemp("small")


@pytest.fixture(scope="module")
def nursery(small, tmp_path_factory):
    nursery = Nursery(tmp_path_factory.mktemp("nursery") / "log", *in_a_mount_namespace(small), **MALLOC)
    yield nursery
    nursery.end()


@pytest.fixture
def world(request, nursery, small, tmp_path):
    world = World(tmp_path, request.param, nursery, *FLAGS, "--transfer-dir", str(small), UCX_TLS="all")
    yield world
    world.end()


@contextlib.contextmanager
def short_of(world, shortage, small):
    worker = world.workers[shortage.victim]
    pid = worker.process.pid
    if shortage.what == "address space":
        with no_address_space(pid):
            yield
    elif shortage.what == "disk":
        with full_disk(Path(f"/proc/{pid}/root/{small}")):
            yield
    else:
        group = memory_group()
        if group is None:
            pytest.skip("this process may make no group whose memory is bounded")
        with bounded_memory(pid, group):
            yield
            world.kill(shortage.victim)
    assert shortage.says in worker.log.read_text()


@pytest.mark.parametrize(("world", "shortage"), CASES, indirect=["world"])
async def test_a_worker_runs_short_in_the_middle_of_a_transfer(world, shortage, small):
    if shortage.what == "disk" and not in_a_mount_namespace(small):
        pytest.skip("this machine has no mount namespaces")
    prefill, decode = await world.up()
    await complete(decode, prefill.kv_address)  # what torch makes at the first request it makes with room
    async with at(world, shortage.row) as scene:
        with short_of(world, shortage, small):
            scene.gate.open()
            assert await scene.stream.end() is shortage.client, scene.stream.error
            for worker in [worker for worker in world.workers.values() if worker.process.poll() is None]:
                await eventually(worker.is_empty, f"{worker.url} holds nothing", WITHIN_S)
    await serves_again(world, scene.stream)
