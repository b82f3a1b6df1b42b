"""Whoever dies, in whatever state: the client gets its tokens or a clean error, no page is lost, the next is served.

A table with a row for each state that either side can be in (`STATES`). Here the connection is cut there, which is what
both survivors see of the other's death; test_kills.py kills and stops processes at the same points.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest

from tandem_worker.engine import Sampling, Shortage
from tandem_worker.transfer import push, ticket
from workers.tests.prompts import token_ids
from workers.tests.transfer.gate import Gate, Hold
from workers.tests.transfer.kit import Heard, alone, eventually, running, write_model

GREEDY = Sampling(max_tokens=12, ignore_eos=True)
PROMPT = token_ids("ends", 150, 256)
D, P = ticket.State, push.State
WITHIN_S = 30.0


@dataclass(frozen=True)
class Row:
    """At this hold the decode worker's ticket and the prefill worker's push are in these states (None: none there)."""

    decode: D | None
    prefill: P | None
    hold: Hold
    deaf: str = ""  # a word of the prefill worker's engine that is not heard: it stays where it is
    full: bool = False  # the decode worker has no room
    leaves: bool = False  # the client leaves once pages come


STATES = [
    pytest.param(Row(D.ASKED, None, Hold("D", "prefill")), id="asked, not heard"),
    pytest.param(Row(D.ASKED, P.QUEUED, Hold("P", "never"), deaf="on_head"), id="asked, queued"),
    pytest.param(Row(D.ASKED, P.READY, Hold("P", "never"), full=True), id="asked, ready"),
    pytest.param(Row(D.ASKED, P.ASKING, Hold("P", "ticket?")), id="asked, asking"),
    pytest.param(Row(D.OPEN, P.ASKING, Hold("D", "ticket")), id="open, asking"),
    pytest.param(Row(D.OPEN, P.PUSHING, Hold("P", "chunk"), deaf="on_done"), id="open, pushing"),
    pytest.param(Row(D.OPEN, P.PUSHING, Hold("P", "chunk", middle=True), deaf="on_done"), id="open, in mid-page"),
    pytest.param(Row(D.FIRST, P.PUSHING, Hold("P", "commit"), deaf="on_done"), id="first, pushing"),
    pytest.param(Row(D.FIRST, None, Hold("P", "commit")), id="first, commit under way"),
    pytest.param(
        Row(D.QUARANTINED, P.PUSHING, Hold("D", "cancel"), leaves=True, deaf="on_done"), id="cancelled, pushing"
    ),
    pytest.param(Row(D.QUARANTINED, P.SENDING, Hold("D", "cancel"), leaves=True), id="cancelled, sending"),
    pytest.param(Row(D.QUARANTINED, None, Hold("P", "quiet"), leaves=True), id="cancelled, quiet under way"),
    pytest.param(Row(None, P.SENDING, Hold("D", "taken")), id="committed, sending"),
]


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("tiny") / "tiny")


@pytest.fixture
async def pair(model):
    async with running(model, "p0") as prefill, running(model, "d0") as decode:
        yield prefill, decode


def decode_state(worker):
    return next((pull.ticket.state for pull in worker.node.decode._by_request.values()), None)


def prefill_state(worker):
    return next((one.state for one in worker.node.prefill._pushes.values()), None)


def arrange(row, prefill, decode):
    if row.deaf:
        setattr(prefill.node.prefill, row.deaf, lambda *facts: None)
    if row.full:
        decode.engine.reserve = lambda *facts: Shortage(1, 0)


async def ask(decode, address, request):
    link = await decode.node.peers.get(tuple(address[:2]))
    heard = Heard()
    decode.node.decode.ask(link, request, PROMPT, GREEDY, heard)
    return heard


def at_row(row, prefill, decode):
    return (decode_state(decode), prefill_state(prefill)) == (row.decode, row.prefill)


@pytest.mark.parametrize("row", STATES)
async def test_a_cut_in_each_state_loses_nothing(pair, row):
    prefill, decode = pair
    arrange(row, prefill, decode)
    async with Gate("127.0.0.1", prefill.assembled.kv_port, row.hold) as gate:
        heard = await ask(decode, gate.address, "r")
        if row.leaves:
            heard.on_pages = lambda byte_count: decode.node.decode.cancel("r")
        await eventually(lambda: at_row(row, prefill, decode), f"{row.decode}, {row.prefill}", WITHIN_S)
        gate.cut()
        if not row.leaves:
            await heard.until(lambda heard: heard.over, WITHIN_S)
    for worker in pair:
        await eventually(worker.is_empty, f"{worker.settings.worker} holds nothing", WITHIN_S)
    await the_end_is_clean(row, heard, prefill, decode)


async def the_end_is_clean(row, heard, prefill, decode):
    """The same tokens or one failure; and both serve again."""
    for worker, names in ((prefill.node.prefill, [row.deaf]), (decode.engine, ["reserve"])):
        for name in names:
            worker.__dict__.pop(name, None)
    again = await ask(decode, ("127.0.0.1", prefill.assembled.kv_port), "again")
    wanted = await alone(prefill, "alone", PROMPT, GREEDY)
    for one in (again, wanted):
        await one.until(lambda one: one.over, WITHIN_S)
    assert again.ids == wanted.ids
    if row.leaves:
        assert heard.failure is None
    elif row.decode is None:
        assert heard.ids == wanted.ids
    else:
        assert heard.failure.code == "closed"
        assert heard.ids == wanted.ids[: len(heard.ids)]


def test_the_table_has_every_state_that_lasts():
    """`cut` lasts only for backends whose fence is a key, `leaving` only while pages wait: the model has those."""
    rows = [param.values[0] for param in STATES]
    assert {row.decode for row in rows} == {None, *D} - {D.CUT, D.COMMITTED, D.ENDED}
    assert {row.prefill for row in rows} == {None, *P} - {P.LEAVING, P.ENDED}


def test_the_reference_page_has_each_row():
    page = (Path(__file__).parents[3] / "docs/reference/transfer.md").read_text()
    table = page.split("## Whoever dies")[1].split("\n\n")[0]
    assert [line.split("|")[1].strip() for line in table.splitlines()[3:]] == [param.id for param in STATES]
