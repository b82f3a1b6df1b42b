"""`python -m workers.tests.transfer.hostile_lender BACKEND SEED COUNT`: a decode worker's backend is lent lies.

In a process of its own, since a native library that trusts what it is told crashes. Prints JSON: what came of each.
`BACKEND ports`: nothing of the kind; it waits for bytes to be thrown at its libraries' ports.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import random
import sys
from collections import Counter
from pathlib import Path

from msgspec.structs import replace

from tandem_worker.transfer.backends import make_backend
from tandem_worker.transfer.base import LaneError
from tandem_worker.transfer.wire import Lend, Span, WireError

SIZE = 1 << 20
WAIT_S = 3.0  # for the test to throw
READ_S = 1.0  # a read that hangs is given up, as the end of a connection would
HUGE = (0, 1, -1, 2**31, 2**40, 2**47, 2**63 - 1, 2**63, 2**64 - 1, 2**64)


def hostile(dice: random.Random, lend: Lend) -> tuple[str, Lend]:
    """A lend that may pass for one: one of its fields is out of order."""
    key = bytearray(lend.key)
    if key:
        key[dice.randrange(len(key))] ^= 1 << dice.randrange(8)
    address, _, start = lend.where.rpartition(" ")
    kinds = {
        "random key": {"key": dice.randbytes(dice.choice([0, 1, 7, 64, 4096]))},
        "cut key": {"key": lend.key[: dice.randrange(len(lend.key) + 1)]},
        "longer key": {"key": (lend.key * 20)[:4096]},
        "a bit of the key": {"key": bytes(key)},
        "random place": {"where": "".join(chr(dice.randrange(32, 127)) for _ in range(dice.randrange(60)))},
        "far place": {"where": f"{address} {dice.choice(HUGE):x}".strip()},
        "moved place": {"where": f"{address} {int(start, 16) + dice.choice([-4096, SIZE, 7]):x}".strip()},
        "nobody there": {"where": f"127.0.0.1:{dice.randrange(1, 1024)} {start}"},
        "foreign name": {"where": f"{dice.choice(['../etc', 'a' * 500, '[::]:0', '127.0.0.1'])} {start}"},
        "more than there is": {"size": dice.choice([SIZE * 2, 2**40])},
        "token": {"token": dice.randbytes(32)},
        "another backend": {"backend": dice.choice(["tcp", "shm", "", "x" * 500])},
    }
    kind = dice.choice(sorted(kinds))
    return kind, replace(lend, **kinds[kind])


def spans(dice: random.Random, lend: Lend) -> list[Span]:
    """Places that a chunk might name; those outside of what was lent must not reach the library."""
    at = dice.choice([0, 1, SIZE - 4096, SIZE, lend.size - 4096, 2**40, 2**62, -1])
    return dice.choice([[Span(at, 4096)], [Span(at, 2048), Span(0, 2048)], [Span(at, 8)] * 512, [Span(0, 2**40)]])


async def try_one(backend, lend: Lend, where: list[Span], target: memoryview) -> str:
    try:
        lane = await backend.borrow(lend)
    except LaneError:
        return "refused"
    try:
        return await read(lane, where, target)
    finally:
        lane.close()
        over = asyncio.Event()
        lane.flying.at_end(over.set)
        if not lane.revoke():
            await asyncio.wait_for(over.wait(), 30)


async def read(lane, where: list[Span], target: memoryview) -> str:
    try:
        fetch = lane.fetch(where, [target])
        if fetch is not None:
            await asyncio.wait_for(fetch, READ_S)
    except (LaneError, WireError) as error:
        return type(error).__name__
    except TimeoutError:
        return "given up"
    return "read"


def lend_of(backend) -> tuple[memoryview, Lend]:
    """A prefill worker's pages, and how it lends them."""
    pages = memoryview(mmap.mmap(-1, SIZE))
    backend.open(pages, None)
    lane, lend = backend.lend()
    lane.under_way(True)  # what UCX does for readers
    return pages, lend


def resident_kib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4


async def main(name: str, seed: int, count: int) -> dict:
    dice = random.Random(seed)
    lender, reader, other = (make_backend(name, Path(), "127.0.0.1") for _ in range(3))
    target = memoryview(mmap.mmap(-1, SIZE))
    reader.open(target, None)
    (_, honest), (pages, another) = lend_of(lender), lend_of(other)
    outcomes: Counter[str] = Counter()
    before = resident_kib()
    for _ in range(count):
        kind, lend = hostile(dice, honest)
        outcomes[f"{kind}: {await try_one(reader, lend, spans(dice, lend), target[:4096])}"] += 1
    grown = resident_kib() - before
    pages[:4096] = bytes(range(256)) * 16
    target[:4096] = bytes(4096)
    after = await try_one(reader, another, [Span(0, 4096)], target[:4096])
    same = bytes(target[:4096]) == bytes(pages[:4096])
    return {"outcomes": outcomes, "grown_kib": grown, "after": after, "same": same}


async def be_thrown_at(name: str) -> dict:
    """Two workers that wait for bytes at their libraries' ports, then read as if nothing had happened."""
    lender, reader = (make_backend(name, Path(), "127.0.0.1") for _ in range(2))
    target = memoryview(mmap.mmap(-1, SIZE))
    reader.open(target, None)
    pages, lend = lend_of(lender)
    print("up", flush=True)
    await asyncio.sleep(WAIT_S)
    pages[:4096] = bytes(range(256)) * 16
    after = await try_one(reader, lend, [Span(0, 4096)], target[:4096])
    return {"after": after, "same": bytes(target[:4096]) == bytes(pages[:4096])}


if __name__ == "__main__":
    hostile_or_not = be_thrown_at(sys.argv[1]) if sys.argv[2] == "ports" else main(sys.argv[1], *map(int, sys.argv[2:]))
    print(json.dumps(asyncio.run(hostile_or_not)), flush=True)
    os._exit(0)
