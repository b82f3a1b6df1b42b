"""A worker whose engine's thread has ended serves nobody: it says so, tells its clients, and ends with code 3."""

import asyncio
import os
import subprocess
import sys

import aiohttp
import pytest

from workers.tests.ports import free_ports
from workers.tests.transfer.kit import Process, environment_of, eventually, flags_of

PLAN = """
def next_step(queues, plan=Queues.next_step):
    if queues.prefill:
        raise AssertionError("two owners of page 3")
    return plan(queues)
Queues.next_step = next_step
"""
DISCARD = """
def fail(*_):
    raise AssertionError("two owners of page 3")
Runner.prefill = Queues.discard = fail
"""
WORKER = """
from tandem_worker import main
from tandem_worker.engine.queues import Queues
from tandem_worker.engine.runner import Runner
{fault}
main.main()
"""
WITHIN_S = 60.0  # 180 s pass before a client is told that no first token came


def start(model, log, fault):
    """The worker, whole, with one fault of its engine."""
    ports = (free_ports()[0], 0)
    command = [sys.executable, "-c", WORKER.format(fault=fault), *flags_of(model, "127.0.0.1", ports)]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env={**os.environ, **environment_of("w")}, stdout=out, stderr=subprocess.STDOUT
        )
    return Process(process, "127.0.0.1", *ports, log)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        pytest.param(PLAN, True, id="where it decides"),
        pytest.param(DISCARD, False, id="where it ends a request: nor does the worker's end tell anybody"),
    ],
)
async def test_a_worker_whose_engine_has_ended_ends(model, tmp_path, fault, told):
    worker = start(model, tmp_path / "log", fault)
    try:
        await worker.ready()
        body = {"model": "tiny", "prompt": "x" * 20, "max_tokens": 4}
        async with aiohttp.ClientSession() as session, asyncio.timeout(WITHIN_S):
            try:
                async with session.post(worker.url + "/v1/completions", json=body) as got:
                    assert got.status == 503
                    assert "the worker is stopping" in await got.text()
            except aiohttp.ClientError:
                assert not told
        await eventually(lambda: worker.process.poll() is not None, "the worker has ended", WITHIN_S)
        assert worker.process.returncode == 3, worker.log.read_text()
        line = "tandem-worker: the engine's thread has ended: AssertionError: two owners of page 3\n"
        assert line in worker.log.read_text()
    finally:
        worker.process.kill()
        await asyncio.to_thread(worker.process.wait)
