"""Figures of the engine that no peer is beside: a long prompt's interference, scheduling's share of a step, the start.

`python -m e2e.bench.engine_serving --docs`: prints them and writes their section of docs/reference/performance.md.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import aiohttp

from e2e.bench.engine_children import Ours
from e2e.bench.engine_models import SMOLLM, directory
from e2e.bench.engine_peers import ids
from e2e.bench.performance import put
from e2e.bench.table import Row, against, write
from e2e.harness.kube import REPO
from tandem_worker.engine import EngineSettings, Sampling, runner, sampler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STREAMS, PROMPT, BATCH = 8, 4096, 32
UNDISTURBED: Final = 60  # steps before the prompt comes
WAIT_S: Final = 120.0
READY_WITHIN_S, STARTS = 8.0, 3
SETTINGS: Final = EngineSettings(
    dtype="bfloat16", max_context=8192, kv_memory_mib=1500, chunk_tokens=256, prefix_cache=False
)


def main() -> int:
    """Measure, print, write build/bench/engine-serving.json, and the section with --docs."""
    parser = argparse.ArgumentParser("bench-engine-serving")
    parser.add_argument("--chunks", default="128,256,512", help="chunk sizes of the interference curve")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--docs", action="store_true")
    asked = parser.parse_args()
    settings = replace(SETTINGS, threads=asked.threads)
    rows = [row for size in asked.chunks.split(",") for row in interference(replace(settings, chunk_tokens=int(size)))]
    rows += [*overhead(settings), *start_to_ready()]
    write("engine-serving", rows)
    if asked.docs:
        put("engine serving", f"python -m e2e.bench.engine_serving {' '.join(sys.argv[1:])}", rows)
    return 0


def engine_of(settings: EngineSettings, steps: int) -> Ours:
    """The engine over the made model."""
    job = {"model": str(directory("made-125m")), "threads": settings.threads, "steps": steps, "clock": "wall"}
    return Ours(job, settings)


def interference(settings: EngineSettings) -> Iterator[Row]:
    """Gaps between the tokens of 8 streams before and while a prompt of 4,096 tokens is computed."""
    ours = engine_of(settings, UNDISTURBED + 10 * PROMPT // settings.chunk_tokens)
    times: list[list[float]] = [[] for _ in range(STREAMS)]
    begun, done = threading.Event(), threading.Event()

    def told(stream: list[float]) -> Callable[[object], None]:
        def keep(_token: object) -> None:
            stream.append(time.perf_counter())
            if len(times[-1]) > UNDISTURBED:
                begun.set()

        return keep

    chunks = timed(ours.engine._runner, "prefill")  # noqa: SLF001 (a bench looks inside)
    for start in [ours.handed_over(told(stream)) for stream in times]:
        start()
    if not begun.wait(WAIT_S):
        raise TimeoutError(f"{UNDISTURBED} steps took {WAIT_S} s")
    arrived = time.perf_counter()
    ours.engine.submit("long", ids(PROMPT, ours.engine.info.vocab, 1), Sampling(max_tokens=1), lambda _: done.set())
    if not done.wait(WAIT_S):
        raise TimeoutError(f"a prompt of {PROMPT} tokens took {WAIT_S} s")
    ended = time.perf_counter()
    ours.engine.stop()
    before = p99(gaps(times, 0.0, arrived))
    during = p99(gaps(times, arrived, ended))
    chunk = statistics.median(chunks)
    name = f"chunks of {settings.chunk_tokens}"
    yield Row(f"{name}: median chunk", 1e3 * chunk, "ms", n=len(chunks))
    yield Row(f"{name}: the long prompt's first token", ended - arrived, "s")
    yield Row(f"{name}: ITL p99 undisturbed", 1e3 * before, "ms")
    yield against(f"{name}: ITL p99 during it, beside that + 2 chunks", 1e3 * during, "ms", 1e3 * (before + 2 * chunk))


def gaps(times: list[list[float]], start: float, end: float) -> list[float]:
    """Of all streams: those that ended in that time, but for a stream's first three."""
    return [
        after - before
        for stream in times
        for before, after in itertools.pairwise(stream[3:])
        if start < after <= end
    ]  # fmt: skip


def p99(values: list[float]) -> float:
    """The value that 99 % do not exceed."""
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))]


def timed(owner: Any, name: str) -> list[float]:
    """Seconds of each call of a method from now on."""
    took: list[float] = []
    call = getattr(owner, name)

    def measured(*arguments: object) -> object:
        start = time.perf_counter()
        try:
            return call(*arguments)
        finally:
            took.append(time.perf_counter() - start)

    setattr(owner, name, measured)
    return took


def overhead(settings: EngineSettings) -> Iterator[Row]:
    """What a step of batch 32 takes but for the forward pass and the sampling."""
    with mock.patch.object(runner, "pick_tokens", sampler.pick_tokens):
        ours = engine_of(settings, 40)
        forward, sampling = timed(ours.engine._runner, "_forward"), timed(runner, "pick_tokens")  # noqa: SLF001
        steps = ours.gaps(BATCH)
        ours.engine.stop()
    count = len(steps) - 2
    rest = [
        step - one - two for step, one, two in zip(steps[-count:], forward[-count:], sampling[-count:], strict=True)
    ]
    found, step = statistics.median(rest), statistics.median(steps)
    yield against(f"scheduling, a step of batch {BATCH}", 1e3 * found, "ms", 1.0, n=count)
    yield against(f"scheduling, share of the step ({1e3 * step:.1f} ms)", 100 * found / step, "%", 10.0)
    yield Row(f"sampling, a step of batch {BATCH}", 1e3 * statistics.median(sampling[-count:]), "ms", n=count)


def start_to_ready() -> Iterator[Row]:
    """From the process' start to 200 at /ready, on SmolLM2-135M; files are in the page cache after the first."""
    took = [one_start(18_000 + 2 * at) for at in range(STARTS)]
    yield against("start to ready, SmolLM2-135M: median", statistics.median(took), "s", READY_WITHIN_S, n=STARTS)


def one_start(port: int) -> float:
    """Seconds of one start."""
    command = [sys.executable, "-m", "tandem_worker.main", "--model", f"file://{SMOLLM}", "--port", str(port)]
    command += ["--kv-port", str(port + 1)]
    environment = {**os.environ, "TANDEM_TRANSFER_KEY": "00" * 32, "PYTHONPATH": str(REPO)}
    start = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        asyncio.run(until_ready(port))
        return time.perf_counter() - start
    finally:
        process.kill()
        process.wait()


async def until_ready(port: int) -> None:
    """Until it says so. Raises TimeoutError."""
    async with asyncio.timeout(WAIT_S), aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(f"http://127.0.0.1:{port}/ready") as got:
                    if got.status == 200:
                        return
            except aiohttp.ClientConnectionError:
                pass
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
