"""Many short requests, many of them cancelled: pages and memory are as they were."""

import itertools
import random
import resource
from pathlib import Path

import pytest

from tandem_worker.engine import Sampling
from workers.tests.prompts import token_ids
from workers.tests.tiny import CONFIG, Collector, make_engine, wait_until_idle, write_tiny

AT_ONCE = 64


def churn(engine, requests: int, names: itertools.count, seed: int) -> None:
    """That many requests in waves; a third is cancelled, before, in and after its prefill."""
    drawn = random.Random(seed)
    for _ in range(requests // AT_ONCE):
        wave = []
        for name in itertools.islice(names, AT_ONCE):
            collector = Collector()
            prompt = token_ids(f"churn {name % 200}", drawn.randrange(1, 24), CONFIG["vocab_size"])
            engine.submit(f"r{name}", prompt, Sampling(max_tokens=drawn.randrange(1, 6), ignore_eos=True), collector)
            wave.append((f"r{name}", collector))
        cancelled = {name for name, _ in drawn.sample(wave, AT_ONCE // 3)}
        for name in cancelled:
            engine.cancel(name)
        for name, collector in wave:
            if name not in cancelled:
                collector.ids()
    wait_until_idle(engine)


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def check_flat(tmp_path, requests: int) -> None:
    # bf16: in fp32 oneDNN keeps what it made for every number of rows that it has seen, up to a bound.
    engine = make_engine(write_tiny(tmp_path / "tiny"), max_queue=2 * AT_ONCE, dtype="bfloat16")
    names = itertools.count()
    free = engine.pages - engine.stats().kv_usage * engine.pages
    churn(engine, requests // 4, names, 1)  # caches and allocators come to rest
    before = resident_mib()
    churn(engine, requests - requests // 4, names, 2)
    after, stats = resident_mib(), engine.stats()
    engine.stop()
    print(f"\n{requests} requests: {before:.1f} MiB, then {after:.1f} MiB")
    assert engine.pages - stats.kv_usage * engine.pages == free
    assert (stats.running, stats.waiting, stats.quarantined_pages) == (0, 0, 0)
    assert after <= 1.02 * before


def test_memory_and_pages_are_flat(tmp_path):
    check_flat(tmp_path, 512)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_memory_and_pages_are_flat_over_twenty_thousand(tmp_path):
    check_flat(tmp_path, 20_000)
