"""A pair whose pages count as a device's: over every backend that this machine has, pages pass through host slots."""

import pytest
import torch

from tandem_worker.engine import engine as engine_module
from tandem_worker.engine.staging import StagedStore
from workers.tests.transfer.kit import GREEDY, alone, eventually, prompt, pull, running


@pytest.mark.parametrize("backend", ["tcp", "shm"])
async def test_a_staged_pair_says_what_one_worker_says(model, monkeypatch, tmp_path, backend):
    prompts = [prompt(f"n{n}", n) for n in (1, 4, 33, 200)] + [prompt("n200", 200) + prompt("tail", 9)]
    async with running(model, "one") as one:
        wanted = [await alone(one, f"a{n}", ids, GREEDY) for n, ids in enumerate(prompts)]
        for heard in wanted:
            await heard.until(lambda heard: heard.over)
    monkeypatch.setattr(
        engine_module,
        "make_store",
        lambda model, settings: StagedStore(model.info, settings, model.decoder.dtype, torch.device("cpu")),
    )
    changes = {"backend": backend, "transfer_dir": tmp_path}
    async with running(model, "p0", **changes) as prefill, running(model, "d0", **changes) as decode:
        got = [await pull(decode, prefill, f"r{n}", ids, GREEDY) for n, ids in enumerate(prompts)]
        for heard in got:
            await heard.until(lambda heard: heard.over)
        await eventually(prefill.is_empty, "the prefill worker holds nothing")
        await eventually(decode.is_empty, "the decode worker holds nothing")
        assert len(decode.engine._store._slots) == len(prefill.engine._store._slots)
    assert [heard.failure for heard in got] == [None] * len(prompts)
    assert [heard.ids for heard in got] == [heard.ids for heard in wanted]
