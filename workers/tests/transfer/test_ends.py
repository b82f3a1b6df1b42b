"""Whoever dies, in whatever state: the client gets its tokens or a clean error, no page is lost, the next is served.

Here the connection is cut in each state (ends.py), which is what both survivors see of the other's death, on every
backend; test_kills.py kills and stops processes at the same points.
"""

import pytest

from tandem_worker.engine import Sampling
from tandem_worker.transfer.backends import NAMES
from workers.tests.prompts import token_ids
from workers.tests.transfer.arranged import USUAL, arrange, states
from workers.tests.transfer.ends import PASSED, ROWS, Client, D, P, is_at, rows_of
from workers.tests.transfer.gate import Gate
from workers.tests.transfer.kit import Heard, alone, eventually, running

SHORT, LONG = (Sampling(max_tokens=count, ignore_eos=True) for count in (12, 150))
PROMPT = token_ids("ends", 150, 256)
WITHIN_S = 30.0
SOON = {"open, in mid-page", "first, sending", "cancelled, leaving"}  # in every run for every backend; tcp has all
CASES = [
    pytest.param(name, row, id=f"{name}: {row.name}",
                 marks=[] if name == "tcp" or row.name in SOON else pytest.mark.slow)
    for name, row in rows_of(*NAMES) if not row.stopped
]  # fmt: skip


@pytest.fixture
async def pair(model, request):
    name = request.param
    async with running(model, "p0", backend=name) as prefill, running(model, "d0", backend=name) as decode:
        yield prefill, decode


async def ask(decode, address, request, sampling=SHORT):
    link = await decode.node.peers.get(tuple(address[:2]))
    name = decode.settings.backend
    await eventually(lambda: link.backend == name, f"pages travel by {name}", WITHIN_S)
    heard = Heard()
    decode.node.decode.ask(link, request, PROMPT, sampling, heard)
    return heard


def where(pair):
    prefill, decode = pair
    return states(decode.node, decode.engine)["decode"], states(prefill.node, prefill.engine)["prefill"]


@pytest.mark.parametrize(("pair", "row"), CASES, indirect=["pair"])
async def test_a_cut_in_each_state_loses_nothing(pair, row):
    prefill, decode = pair
    sampling = LONG if row.decodes else SHORT
    for worker in pair:
        arrange(worker.node, worker.engine, row.facts if worker is prefill or row.facts.full else USUAL)
    async with Gate("127.0.0.1", prefill.assembled.kv_port, *row.holds) as gate:
        heard = await ask(decode, gate.address, "r", sampling)
        if row.leaves:
            await eventually(lambda: where(pair) == tuple([state] for state in row.leaves), f"{row.leaves}", WITHIN_S)
            decode.node.decode.cancel("r")
        if row.decode is D.ENDED:
            await heard.until(lambda heard: heard.over, WITHIN_S)
        there = lambda: (gate.halved or not row.half) and is_at(row, *where(pair))  # noqa: E731
        await eventually(there, row.name, WITHIN_S)
        gate.cut()
        if not row.leaves:
            await heard.until(lambda heard: heard.over, WITHIN_S)
    for worker in pair:
        await eventually(worker.is_empty, f"{worker.settings.worker} holds nothing", WITHIN_S)
        arrange(worker.node, worker.engine, USUAL)
    await the_end_is_clean(row, sampling, heard, prefill, decode)


async def the_end_is_clean(row, sampling, heard, prefill, decode):
    """The same tokens or one failure; and both serve again."""
    again = await ask(decode, ("127.0.0.1", prefill.assembled.kv_port), "again", sampling)
    wanted = await alone(prefill, "alone", PROMPT, sampling)
    for one in (again, wanted):
        await one.until(lambda one: one.over, WITHIN_S)
    assert again.ids == wanted.ids
    assert heard.ids == wanted.ids[: len(heard.ids)]
    if row.prefill_dies is Client.SERVED:
        assert heard.ids == wanted.ids
    elif row.prefill_dies is Client.LEFT:
        assert heard.failure is None
    else:
        assert heard.failure.code == "closed"
        assert len(heard.ids) == (row.prefill_dies is Client.BROKEN)


@pytest.mark.parametrize("backend", NAMES)
def test_each_state_of_either_side_has_a_row_on_each_backend_or_a_reason(backend):
    here = [row for name, row in rows_of(backend)]
    assert {row.decode for row in here} | {s for s, name in PASSED if name == backend} == set(D)
    assert {row.prefill for row in here} == {None, *P}


def test_no_row_is_there_twice():
    assert len({row.name for row in ROWS}) == len(ROWS)
