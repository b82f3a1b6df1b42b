"""Two real engines, real sockets, one process: the pair's tokens are one worker's tokens, and every page comes back."""

import socket

import pytest

from tandem_worker.engine import Sampling, Shortage
from tandem_worker.transfer.peers import PeerError, parse_address
from workers.tests.transfer.kit import (
    GREEDY,
    alone,
    eventually,
    prompt,
    pull,
    running,
    value_of,
)


async def test_a_pair_says_what_one_worker_says(pair, model):
    prefill, decode = pair
    lengths = [1, 3, 4, 5, 31, 32, 33, 100, 200]
    family = prompt("family", 60)
    prompts = [prompt(f"n{n}", n) for n in lengths] + [family + prompt(f"tail{n}", n) for n in (1, 9, 40)]
    async with running(model, "one") as one:
        wanted = [await alone(one, f"a{n}", ids, GREEDY) for n, ids in enumerate(prompts)]
        got = [await pull(decode, prefill, f"r{n}", ids, GREEDY) for n, ids in enumerate(prompts)]
        for both in zip(wanted, got, strict=True):
            for heard in both:
                await heard.until(lambda heard: heard.over)
    assert [heard.failure for heard in got] == [None] * len(prompts)
    assert [heard.ids for heard in got] == [heard.ids for heard in wanted]
    await eventually(prefill.is_empty, "the prefill worker holds nothing")
    await eventually(decode.is_empty, "the decode worker holds nothing")


async def test_only_missing_pages_travel(pair):
    prefill, decode = pair
    page_bytes = 3 * 2 * 4 * 2 * 16 * 4  # layers, K and V, tokens, heads, size, fp32
    ids = prompt("once", 102)
    for request, pages in (("first", 26), ("again", 1)):
        heard = await pull(decode, prefill, request, ids, GREEDY)
        await heard.until(lambda heard: heard.over)
        assert heard.bytes == pages * page_bytes
        assert heard.granted == 26 - pages


@pytest.mark.parametrize(
    "sampling",
    [
        pytest.param(Sampling(max_tokens=20, temperature=0.9, top_p=0.8, seed=5, ignore_eos=True), id="seeded"),
        pytest.param(Sampling(max_tokens=6, ignore_eos=True, top_logprobs=3), id="logprobs"),
        pytest.param(Sampling(max_tokens=1), id="one token"),
        pytest.param(Sampling(max_tokens=40, stop_ids=tuple(range(0, 256, 4))), id="a stop token soon"),
        pytest.param(Sampling(max_tokens=40, stop_ids=tuple(range(256))[:64]), id="stop ids at the cap"),
    ],
)
async def test_sampling_is_the_same_in_a_pair(pair, sampling):
    prefill, decode = pair
    ids = prompt("sampling", 50)
    wanted = await alone(prefill, "alone", ids, sampling)
    await wanted.until(lambda heard: heard.over)
    got = await pull(decode, prefill, "pair", ids, sampling)
    await got.until(lambda heard: heard.over)
    assert (got.ids, got.tokens[-1].finish) == (wanted.ids, wanted.tokens[-1].finish)
    for one, other in zip(got.tokens, wanted.tokens, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert [n for n, _ in one.top] == [n for n, _ in other.top]
    await eventually(decode.is_empty, "the decode worker holds nothing")
    await eventually(prefill.is_empty, "the prefill worker holds nothing")


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(lambda heard: True, id="at once"),
        pytest.param(lambda heard: heard.granted is not None, id="with a ticket"),
        pytest.param(lambda heard: heard.bytes > 0, id="in the middle of the pages"),
        pytest.param(lambda heard: len(heard.tokens) >= 1, id="after the first token"),
        pytest.param(lambda heard: len(heard.tokens) >= 4, id="while it decodes"),
    ],
)
async def test_a_cancel_at_any_moment_leaves_nothing(pair, moment):
    prefill, decode = pair
    long = Sampling(max_tokens=200, ignore_eos=True)
    heard = await pull(decode, prefill, "r", prompt("cancel", 250), long)
    await heard.until(moment)
    decode.node.decode.cancel("r")
    decode.node.decode.cancel("r")
    await eventually(decode.is_empty, "the decode worker holds nothing")
    await eventually(prefill.is_empty, "the prefill worker holds nothing")
    assert heard.failure is None
    again = await pull(decode, prefill, "r2", prompt("cancel", 250), GREEDY)
    await again.until(lambda heard: heard.over)
    assert again.failure is None


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(lambda heard: True, id="at once"),
        pytest.param(lambda heard: heard.granted is not None, id="with a ticket"),
        pytest.param(lambda heard: heard.bytes > 0, id="in the middle of the pages"),
    ],
)
async def test_a_lost_connection_ends_the_request_and_leaves_nothing(pair, moment):
    prefill, decode = pair
    heard = await pull(decode, prefill, "r", prompt("lost", 400), GREEDY)
    await heard.until(moment)
    link = await decode.node.peers.get(("127.0.0.1", prefill.assembled.kv_port))
    link.abort("cut by the test")
    await heard.until(lambda heard: heard.over)
    assert heard.failure is None or heard.failure.code == "closed"
    await eventually(decode.is_empty, "the decode worker holds nothing")
    await eventually(prefill.is_empty, "the prefill worker holds nothing")
    again = await pull(decode, prefill, "r2", prompt("lost", 40), GREEDY)
    await again.until(lambda heard: heard.over)
    assert again.failure is None


@pytest.fixture
async def wide_pair(model):
    async with running(model, "p0") as prefill, running(model, "d0", connections=3) as decode:
        yield prefill, decode


async def test_pages_travel_over_several_connections(wide_pair):
    prefill, decode = wide_pair
    prompts = [prompt(f"wide{n}", n) for n in (1, 100, 480, 470)]
    wanted = [await alone(prefill, f"a{n}", ids, GREEDY) for n, ids in enumerate(prompts)]
    got = [await pull(decode, prefill, f"r{n}", ids, GREEDY) for n, ids in enumerate(prompts)]
    for heard in (*wanted, *got):
        await heard.until(lambda heard: heard.over)
    assert [heard.ids for heard in got] == [heard.ids for heard in wanted]
    first = await decode.node.peers.get(("127.0.0.1", prefill.assembled.kv_port))
    others = [link for link in prefill.node._listening._links if link._joins is not None]
    assert len(others) == 2
    assert {link._joins.nonce for link in others} == {first.nonce}
    for worker in wide_pair:
        await eventually(worker.is_empty, "nothing is held")


@pytest.mark.parametrize("which", [0, 1], ids=["the first", "another"])
async def test_connections_end_together(wide_pair, which):
    prefill, decode = wide_pair
    heard = await pull(decode, prefill, "r", prompt("together", 480), GREEDY)
    await heard.until(lambda heard: heard.bytes > 0)
    first = await decode.node.peers.get(("127.0.0.1", prefill.assembled.kv_port))
    links = [first, *first._others]
    links[which].abort("cut by the test")
    await heard.until(lambda heard: heard.over)
    await eventually(lambda: not any(link.alive for link in links), "all are gone")
    for worker in wide_pair:
        await eventually(worker.is_empty, "nothing is held")
    again = await pull(decode, prefill, "r2", prompt("together", 480), GREEDY)
    await again.until(lambda heard: heard.over)
    assert again.failure is None


async def test_what_need_not_travel_and_how_fast_the_rest_does_is_counted(pair):
    prefill, decode = pair
    for request in ("first", "again"):
        heard = await pull(decode, prefill, request, prompt("counted", 500), GREEDY)
        await heard.until(lambda heard: heard.over)
    page_bytes = 3 * 2 * 4 * 2 * 16 * 4
    assert value_of(decode, "tandem_kv_transfer_saved_bytes_total") == 124 * page_bytes
    metrics = prefill.service.metrics
    for rate in (1e9, 2e9):
        metrics.bandwidth(rate)
    assert value_of(prefill, "tandem_transfer_bandwidth_bytes_per_second") == 2e9


async def test_no_room_means_later_not_never(model):
    """Six requests of which the decode worker has room for two at a time, and at first for none: all come through."""
    async with running(model, "p0") as prefill, running(model, "d0", kv_memory_mib=1) as decode:
        answers = []
        reserve = decode.engine.reserve

        def answer(*facts):
            answers.append(reserve(*facts) if len(answers) > 4 else Shortage(1, 0))
            return answers[-1]

        decode.engine.reserve = answer
        heard = [await pull(decode, prefill, f"r{n}", prompt(f"room{n}", 480), GREEDY) for n in range(6)]
        for one in heard:
            await one.until(lambda heard: heard.over)
        assert [(one.failure, one.tokens[-1].finish) for one in heard] == [(None, "length")] * 6
        assert len(answers) >= 5 + 6
        await eventually(decode.is_empty, "the decode worker holds nothing")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"key": bytes(32)}, "keys differ", id="key"),
        pytest.param({"dtype": "bfloat16"}, "dtype is float32 at .*bfloat16", id="dtype"),
        pytest.param({"page_tokens": 8}, "page_tokens is 4 at .*8", id="page size"),
        pytest.param({"served_name": "big"}, "model is tiny at .*big", id="model"),
    ],
)
async def test_workers_that_do_not_fit_refuse_each_other_at_once(model, changes, words):
    async with running(model, "p0") as prefill, running(model, "d0", **changes) as decode:
        with pytest.raises(PeerError, match=words):
            await decode.node.peers.get(("127.0.0.1", prefill.assembled.kv_port))


async def test_nobody_at_the_address(pair):
    _, decode = pair
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(PeerError, match="no connection"):
            await decode.node.peers.get(("127.0.0.1", free.getsockname()[1]))


@pytest.mark.parametrize("text", ["", "a:b", "prefill.example:8001", "1.2.3.4", "1.2.3.4:0", "1.2.3.4:70000", "[::1]"])
def test_only_addresses_are_addresses(text):
    with pytest.raises(ValueError, match=r"ip:port|valid port"):
        parse_address(text)
