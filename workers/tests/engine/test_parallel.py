"""Tensor parallelism on CPU processes: the tokens of one rank, and the end of all when one ends."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
import torch

from tandem_worker.assembly import load_ranks
from tandem_worker.engine import Engine, ModelLoadError, Sampling, load_model
from tandem_worker.engine.batch import decode_batch, prefill_batch
from tandem_worker.engine.model import read_weights
from tandem_worker.engine.parallel import masks_of, shard_config, shard_tensors, spelled, understood
from tandem_worker.engine.sequence import fresh
from workers.tests.ports import free_ports
from workers.tests.tiny import SETTINGS, Collector, make_engine, write_tiny
from workers.tests.transfer.kit import eventually, start_process, write_model

TIE = 1e-4
PROMPTS = [[5, 6, 7, 8, 9] * 6, list(range(3, 90)), [11], [40, 41, 42, 43]]


def sequence(count):
    one = fresh("r", list(range(count)), Sampling(max_tokens=1), 4)
    one.pages = [7 + at for at in range(-(-count // 4))]
    one.computed = count - 1
    return one


def children(process):
    return [
        int(one) for task in Path(f"/proc/{process}/task").iterdir() for one in (task / "children").read_text().split()
    ]


def is_alive(process):
    state = Path(f"/proc/{process}/stat")
    return state.exists() and state.read_text().rsplit(")", 1)[1].split()[0] != "Z"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("tp"), tie_word_embeddings=False)


def first_difference(one, other):
    """Where two token lists part, and whether the better two logits were a tie there; None: nowhere."""
    for at, (left, right) in enumerate(zip(one, other, strict=True)):
        if left.id != right.id:
            return at, abs(left.top[0][1] - left.top[1][1]) < TIE
    return None


def collect(engine, sampling):
    collectors = [Collector() for _ in PROMPTS]
    for number, (prompt, collector) in enumerate(zip(PROMPTS, collectors, strict=True)):
        engine.submit(f"r{number}", prompt, sampling, collector)
    for collector in collectors:
        collector.ids()
    return [collector.tokens for collector in collectors]


@pytest.mark.parametrize("ranks", [2, pytest.param(4, id="4: two ranks a KV head", marks=pytest.mark.slow)])
def test_ranks_give_the_tokens_of_one(directory, ranks):
    settings = replace(SETTINGS, tensor_parallel=ranks)
    model, others = load_ranks(directory, settings)
    alone, together = make_engine(directory), Engine(model, settings)
    together.start()
    try:
        ties = 0
        for sampling in (
            Sampling(max_tokens=24, top_logprobs=2, ignore_eos=True),
            Sampling(max_tokens=24, top_logprobs=2, ignore_eos=True, temperature=0.8, top_p=0.9, seed=3),
        ):
            for one, other in zip(collect(alone, sampling), collect(together, sampling), strict=True):
                parted = first_difference(one, other)
                assert parted is None or parted[1], (parted, one, other)
                ties += parted is not None
        print(f"tensor parallel {ranks}: {ties} of 8 outputs part at a tie of the two best logits")
    finally:
        alone.stop()
        together.stop()
        others.end()
    assert [process.returncode for process in others.processes] == [0] * (ranks - 1)


def test_shares_of_the_weights_are_the_weights(directory):
    config, tensors = read_weights(directory, torch.float32)
    shares = [shard_tensors(config, tensors, rank, 4) for rank in range(4)]
    queries = "model.layers.1.self_attn.q_proj.weight"
    assert torch.equal(torch.cat([one[queries] for one in shares]), tensors[queries])
    keys = "model.layers.1.self_attn.k_proj.weight"
    assert torch.equal(torch.cat([shares[0][keys], shares[2][keys]]), tensors[keys])
    assert torch.equal(shares[0][keys], shares[1][keys]), "two ranks have the same KV head"
    down = "model.layers.2.mlp.down_proj.weight"
    assert torch.equal(torch.cat([one[down] for one in shares], dim=1), tensors[down])
    assert shard_config(config, 3, 4).kv_heads == 1


@pytest.mark.parametrize("ranks", [3, 8])
def test_shares_that_do_not_come_out_even_are_refused(directory, ranks):
    with pytest.raises(ModelLoadError, match=f"--tensor-parallel {ranks}"):
        load_model(directory, replace(SETTINGS, tensor_parallel=ranks))


@pytest.mark.parametrize("window", [None, 6])
def test_a_batch_arrives_as_it_was_told(window):
    some = [sequence(count) for count in (3, 9, 30)]
    pieces = [(some[0], 3), (some[2], 7)]
    some[0].computed, some[2].computed = 0, 12
    batches = [decode_batch(some, 4, torch.float32, window)[0], prefill_batch(pieces, 4, torch.float32, window)]
    for batch in batches:
        heard = understood(spelled(batch), 4, torch.float32, window)
        for field in ("tokens", "positions", "page", "slot"):
            assert torch.equal(getattr(heard, field), getattr(batch, field))
        for one, other in zip(heard.groups, batch.groups, strict=True):
            assert torch.equal(one.pages, other.pages)
            for field in ("mask", "window_mask"):
                left, right = getattr(one, field), getattr(other, field)
                assert left is right is None or torch.equal(left, right), field


def test_masks_of_a_whole_prompt_are_none():
    assert masks_of(torch.arange(4)[None], 4, torch.float32, None) == (None, None)


@pytest.mark.slow
@pytest.mark.parametrize("who", ["a rank", "the worker"])
async def test_a_replica_ends_as_one(tmp_path, who):
    """A rank is killed while a request runs: the client is told, everything ends within seconds. And the other way."""
    model, log = write_model(tmp_path / "tiny"), tmp_path / "log"
    worker = start_process(model, "w", "127.0.0.1", (free_ports()[0], 0), log, "--tensor-parallel", "2")
    try:
        await worker.ready()
        rank = children(worker.process.pid)[0]
        body = {"model": "tiny", "prompt": "x" * 20, "max_tokens": 480, "ignore_eos": True, "stream": True}
        async with aiohttp.ClientSession() as session, session.post(worker.url + "/v1/completions", json=body) as got:
            await got.content.readuntil(b"\n\n")
            os.kill(rank if who == "a rank" else worker.process.pid, signal.SIGKILL)
            if who == "a rank":
                assert b"error" in await got.content.read()
        await eventually(lambda: worker.process.poll() is not None, "the worker has ended", 20)
        await eventually(lambda: not is_alive(rank), "the rank has ended", 20)
        if who == "a rank":
            assert worker.process.returncode == 3
            assert "rank 1 of 2 has ended with code -9" in log.read_text()
    finally:
        worker.process.kill()
        await asyncio.to_thread(worker.process.wait)
