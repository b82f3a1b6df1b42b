"""Keys and values in 8 bits: what they cost in precision, that every path reads what was written, what is refused."""

from dataclasses import replace

import pytest
import torch

from tandem_worker.engine import ModelLoadError, Sampling, load_model
from tandem_worker.engine.kv_format import kv_format
from tandem_worker.engine.native.build import BuildError, build
from tandem_worker.engine.native.kernels import NativeKernels
from tandem_worker.engine.native.library import find_library
from tandem_worker.transfer.frames import Frames
from tandem_worker.transfer.handshake import LAYOUTS, Identity, differences
from workers.tests.engine.halves import PROMPTS, hand_over
from workers.tests.engine.test_native import PAGE_TOKENS, batch_of, config_of, random
from workers.tests.tiny import SETTINGS, generate, make_engine, write_tiny

GREEDY = Sampling(max_tokens=16, ignore_eos=True)
# of a row's largest magnitude: half of int8's step, and half of e4m3's (its largest numbers are 32 of 448 apart)
PRECISION = {"int8": 0.5 / 127, "fp8": 16 / 448}


@pytest.mark.parametrize("name", ["int8", "fp8"])
def test_a_row_is_kept_to_its_precision(name):
    form, heads = kv_format(name, torch.bfloat16, 64), random(7, 2, 64) * torch.tensor([1e-3, 1e3]).view(2, 1)
    packed = form.packed(heads)
    assert packed.shape == (7, 2, 68)
    off = (form.unpacked(packed, torch.float32) - heads).abs() / heads.abs().amax(-1, keepdim=True)
    assert off.max() <= PRECISION[name] * 1.001


@pytest.mark.parametrize("name", ["int8", "fp8"])
@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_what_is_no_number_stays_none_and_zeros_are_zeros(name, broken):
    form, heads = kv_format(name, torch.bfloat16, 8), random(2, 8)
    heads[1, 3] = broken
    back = form.unpacked(form.packed(heads), torch.float32)
    assert torch.isfinite(back[0]).all()
    assert not torch.isfinite(back[1]).any()
    assert not form.unpacked(torch.zeros(3, form.row, dtype=torch.uint8), torch.float32).any()


@pytest.mark.parametrize("name", ["int8", "fp8"])
@pytest.mark.parametrize("pieces", [[(0, 1), (70, 1)], [(250, 49), (3, 3)]], ids=["decode", "prompts"])
def test_the_kernels_write_and_read_the_same_pages_as_torch(name, pieces):
    try:
        library = find_library(build(torch.backends.cpu.get_cpu_capability()))
    except (BuildError, KeyError) as error:
        pytest.skip(str(error))
    if isinstance(library, str):
        pytest.skip(library)
    config, form = config_of(6, 2, 64), kv_format(name, torch.bfloat16, 64)
    full = random(120, 2, 2, PAGE_TOKENS, 2, 64, seed=3)
    kv, wide = form.packed(full), form.unpacked(form.packed(full), torch.float32)
    batch = batch_of(pieces, kv)
    qkv = random(len(batch.tokens), 10 * 64, seed=4)
    layer = type("Layer", (), {"head_norms": None, "windowed": False})
    out = NativeKernels(library, config, 400).attention(batch, kv, name)(layer, qkv, 1)
    split = qkv.view(len(qkv), 10, 64)
    new = form.unpacked(kv, torch.float32)[batch.page, 1, :, batch.slot]
    assert (new[:, 0] - split[:, 6:8]).abs().max() <= PRECISION[name] * split[:, 6:8].abs().max() * 1.001
    assert torch.equal(kv[batch.page, 1, 1, batch.slot], form.packed(split[:, 8:10]))
    wide = form.unpacked(kv, torch.float32)[:, 1]
    row = 0
    for group in batch.groups:
        for _ in range(group.rows):
            keys, values = (wide[group.pages, side].flatten(0, 1)[: int(batch.positions[row]) + 1] for side in (0, 1))
            for head in range(6):
                scores = keys[:, head // 3] @ split[row, head]
                expected = torch.softmax(scores, 0) @ values[:, head // 3]
                torch.testing.assert_close(out[row, head * 64 : head * 64 + 64], expected, atol=2e-5, rtol=1e-4)
            row += 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["int8", "fp8"])
def test_tokens_are_the_same_on_one_engine_and_on_two(name, dtype, tmp_path):
    directory = write_tiny(tmp_path / "tiny")
    changes = {"kv": name, "dtype": dtype, "kv_memory_mib": 2}
    engines = [make_engine(directory, **changes) for _ in range(3)]
    prompts = [prompt for prompt in PROMPTS if len(prompt) > 30][:3]
    alone = [generate(engines[0], [prompt], GREEDY)[0] for prompt in prompts]
    assert [hand_over(engines[1], engines[2], f"r{at}", one, GREEDY) for at, one in enumerate(prompts)] == alone
    plain = make_engine(directory, dtype=dtype, kv_memory_mib=2)
    assert engines[0].pages > 1.5 * plain.pages * (1 if dtype == "bfloat16" else 2) * 16 / 20
    for engine in (*engines, plain):
        engine.stop()


def test_another_layout_is_refused_by_its_name():
    sizes = {"page_tokens": 16, "layers": 2, "kv_heads": 2, "head_dim": 64, "worker": "w", "incarnation": 1}
    one = Identity(model="m", config_hash="c", dtype="bfloat16", **sizes)
    other = replace(one, layout=LAYOUTS["int8"])
    assert differences(one.hello(), other.hello()) == {"layout": (LAYOUTS[""], LAYOUTS["int8"])}
    assert (Frames(one).page_bytes, Frames(other).page_bytes) == (2 * 2 * 16 * 2 * 128, 2 * 2 * 16 * 2 * 68)


def test_an_unknown_format_is_refused(tmp_path):
    with pytest.raises(ModelLoadError, match="--kv int4"):
        load_model(write_tiny(tmp_path / "tiny"), replace(SETTINGS, kv="int4"))
