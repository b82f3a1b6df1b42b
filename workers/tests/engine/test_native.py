"""The compiled kernels against plain arithmetic in torch, and what happens where there are none."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tandem_worker.engine import Sampling, load_model
from tandem_worker.engine.config import config_from_json
from tandem_worker.engine.decoder import Batch, Decoder, Group
from tandem_worker.engine.model import expected_shapes
from tandem_worker.engine.native import build as build_module
from tandem_worker.engine.native.build import BuildError, build
from tandem_worker.engine.native.kernels import NativeKernels, NativeLinear, native_kernels
from tandem_worker.engine.native.library import Library, find_library
from workers.tests.prompts import token_ids
from workers.tests.tiny import CONFIG, SETTINGS, generate, make_engine, write_tiny

PAGE_TOKENS = 4


@pytest.fixture(scope="module")
def library() -> Library:
    try:
        found = find_library(build(torch.backends.cpu.get_cpu_capability()))
    except BuildError as error:
        pytest.skip(str(error))
    if isinstance(found, str):
        pytest.skip(found)
    return found


def random(*shape: int, seed: int = 5) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# ---- copies ----


@pytest.mark.parametrize("size", [0, 1, 31, 32, 255, 256, 257, 5000, 2**20 + 3])
@pytest.mark.parametrize(("to", "source"), [(0, 0), (1, 0), (0, 7), (33, 5), (31, 32)])
def test_a_copy_is_what_was_there_and_touches_nothing_else(library, to, source, size):
    there = np.random.default_rng(size).integers(0, 256, size + 64, np.uint8)
    here = np.zeros(size + 64, np.uint8)
    library.copy(here.ctypes.data + to, there.ctypes.data + source, size)
    assert (here[to : to + size] == there[source : source + size]).all()
    assert not here[:to].any()
    assert not here[to + size :].any()


# ---- products ----


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (40, 33), (300, 96), (513, 250)])
@pytest.mark.parametrize("rows", [0, 1, 3, 13, 49, 241])
def test_a_product_is_that_of_the_wide_weight(library, rows, inputs, outputs, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    weight, bias, x = random(outputs, inputs).bfloat16(), random(outputs).bfloat16(), random(rows, inputs, seed=6)
    plain = x @ weight.float().T
    torch.testing.assert_close(NativeLinear(library, weight)(x), plain, atol=2e-4, rtol=1e-4)
    torch.testing.assert_close(NativeLinear(library, weight, bias)(x), plain + bias.float(), atol=2e-4, rtol=1e-4)
    if outputs % 2 == 0:
        gate, value = plain.chunk(2, dim=-1)
        gated = NativeLinear(library, weight, gated=True)(x)
        torch.testing.assert_close(gated, torch.nn.functional.silu(gate) * value, atol=1e-3, rtol=1e-3)
    torch.set_num_threads(before)


def test_a_row_does_not_depend_on_its_batch(library):
    linear, x = NativeLinear(library, random(70, 600).bfloat16()), random(300, 600, seed=6)
    whole = linear(x)
    for start, end in pairwise([0, 1, 3, 16, 65, 300]):  # direct, and by a wide copy of the panel
        assert torch.equal(linear(x[start:end]), whole[start:end])


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_broken_rows_stay_broken_and_alone(library, broken):
    x = random(5, 64, seed=6)
    x[2, 7] = broken
    for gated in (False, True):
        out = NativeLinear(library, random(64, 64).bfloat16(), gated=gated)(x)
        assert torch.isfinite(out).all(dim=1).tolist() == [True, True, False, True, True]


# ---- attention ----


def config_of(heads: int, kv_heads: int, head_dim: int, window: int | None = None):
    sizes = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}
    config = config_from_json({**CONFIG, **sizes}, "test", "test")
    windowed = () if window is None else (0,)
    return replace(config, traits=replace(config.traits, window=window, windowed=windowed))


def batch_of(pieces: list[tuple[int, int]], kv: torch.Tensor) -> Batch:
    """`pieces`: (tokens before, new tokens) of sequences with pages of their own; equal new ones next to each other."""
    order = torch.randperm(len(kv), generator=torch.Generator().manual_seed(2)).tolist()
    positions, page, groups = [], [], []
    for before, new in pieces:
        count = -(-(before + new) // PAGE_TOKENS)
        own, order = order[:count], order[count:]
        positions += range(before, before + new)
        page += [own[at // PAGE_TOKENS] for at in range(before, before + new)]
        groups.append(Group(1, new, torch.tensor(own), None))
    at = torch.tensor(positions)
    return Batch(at, at, torch.tensor(page), at % PAGE_TOKENS, tuple(groups), at)


def expected_row(config, row, pages, position, kv, window):
    """Softmax over the row's keys, written out. row: [heads, head_dim], turned; kv: one layer's, bf16."""
    found = []
    for head in range(config.heads):
        at = head // (config.heads // config.kv_heads)
        keys, values = (kv[pages, side].flatten(0, 1)[: position + 1, at].float() for side in (0, 1))
        scores = keys @ row[head] / config.head_dim**0.5
        if window is not None:
            scores[: max(0, position + 1 - window)] = float("-inf")
        found.append(torch.softmax(scores, 0) @ values)
    return torch.cat(found)


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([(0, 1), (3, 1), (15, 1), (16, 1), (70, 1)], id="one token each"),
        pytest.param([(30, 3), (5, 3)], id="three each"),
        pytest.param([(0, 5)], id="a short prompt"),
        pytest.param([(0, 60), (250, 49), (301, 4)], id="prompts, chunks"),
    ],
)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(4, 2, 16), (6, 2, 64), (5, 1, 80), (2, 2, 96), (1, 1, 128)]
)
def test_attention_is_the_softmax_over_the_pages(library, heads, kv_heads, head_dim, pieces, window):
    config = config_of(heads, kv_heads, head_dim, window)
    kv = random(250, 2, 2, PAGE_TOKENS, kv_heads, head_dim, seed=3).bfloat16()
    batch = batch_of(pieces, kv)
    qkv = random(len(batch.tokens), (heads + 2 * kv_heads) * head_dim, seed=4)
    values = qkv.view(len(qkv), -1, head_dim)[:, heads + kv_heads :].bfloat16()
    layer = SimpleNamespace(head_norms=None, windowed=window is not None)
    untouched = kv[:, 0].clone()
    out = NativeKernels(library, config, 400).attention(batch, kv)(layer, qkv, 1)
    assert torch.equal(kv[:, 0], untouched)
    assert torch.equal(kv[batch.page, 1, 1, batch.slot], values)
    turned = qkv.view(len(qkv), -1, head_dim)[:, :heads] * head_dim**0.5  # the kernels keep them scaled
    row = 0
    for group in batch.groups:
        for _ in range(group.rows):
            expected = expected_row(config, turned[row], group.pages, int(batch.positions[row]), kv[:, 1], window)
            torch.testing.assert_close(out[row], expected, atol=2e-5, rtol=1e-4)
            row += 1


# ---- a whole model ----


@pytest.mark.parametrize("kv", ["", "int8", "fp8"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="llama"),
        pytest.param({"architectures": ["Qwen2ForCausalLM"]}, id="biases"),
        pytest.param({"architectures": ["Qwen3ForCausalLM"], "head_dim": 16, "attention_bias": True}, id="head norms"),
        pytest.param({"architectures": ["MistralForCausalLM"], "sliding_window": 24}, id="windows"),
    ],
)
def test_all_layers_in_one_call_are_the_layers_one_by_one(library, changes, threads, kv):
    """To the last bit, what is written to the pages too."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    config = config_from_json({**CONFIG, "num_hidden_layers": 2, **changes}, "test", "test")
    tensors = {
        name: random(*shape, seed=at).mul(0.2).bfloat16() + ("norm" in name)
        for at, (name, shape) in enumerate(expected_shapes(config).items())
    }
    decoder = Decoder(config, tensors, torch.bfloat16, 400, NativeKernels(library, config, 400), kv=kv)
    assert decoder._stack is not None
    row, dtype = decoder.kv_format.row, decoder.kv_format.dtype
    for pieces in ([(0, 1), (70, 1), (3, 1)], [(0, 60), (250, 49)], [(5, 1), (30, 3)]):
        kvs = [torch.zeros(250, 2, 2, PAGE_TOKENS, config.kv_heads, row, dtype=dtype) for _ in range(2)]
        batch = batch_of(pieces, kvs[0])
        batch = replace(batch, tokens=batch.tokens % config.vocab, wanted=torch.arange(len(batch.tokens)))
        decoder.reduce = None
        together = decoder.forward(batch, kvs[0])
        decoder.reduce = lambda part: part
        assert torch.equal(together, decoder.forward(batch, kvs[1]))
        assert torch.equal(*kvs)
    torch.set_num_threads(before)


def test_layers_of_other_products_are_no_stack(library, tmp_path):
    settings = replace(SETTINGS, dtype="bfloat16", weights="int8")
    assert load_model(write_tiny(tmp_path / "tiny"), settings).decoder._stack is None


def test_tokens_do_not_depend_on_the_batch_or_the_chunks(library, tmp_path):
    directory = write_tiny(tmp_path / "tiny")
    prompts = [token_ids(f"native {length}", length, CONFIG["vocab_size"]) for length in (1, 7, 50, 90, 128)]
    sampling = Sampling(max_tokens=20, ignore_eos=True)
    outputs = []
    for together in (True, False):
        engine = make_engine(directory, dtype="bfloat16", max_batch=8, prefix_cache=False, kv_memory_mib=4)
        if together:
            outputs.append(generate(engine, prompts, sampling))
        else:
            outputs.append([generate(engine, [prompt], sampling)[0] for prompt in prompts])
        engine.stop()
    assert outputs[0] == outputs[1]


# ---- where there are none ----


def test_a_missing_or_broken_library_is_a_reason_and_no_failure(tmp_path, caplog):
    empty = tmp_path / "empty.so"
    empty.write_bytes(b"no library")
    for path, said in ((tmp_path / "none.so", "is not there"), (empty, "cannot be loaded")):
        found = find_library(path)
        assert isinstance(found, str)
        assert said in found or "CPU" in found or "AMX" in found


def test_another_cpu_serves_on_torch_alone(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    with caplog.at_level("INFO"):
        model = load_model(write_tiny(tmp_path / "tiny"), replace(SETTINGS, dtype="bfloat16"))
    assert model.decoder.mask_dtype == torch.bfloat16
    assert "torch alone" in caplog.text
    assert "torch DEFAULT" in caplog.text


def test_float32_and_strange_heads_stay_on_torch(library):
    assert native_kernels(config_of(4, 2, 16), torch.float32, 64) is None
    assert native_kernels(config_of(4, 2, 24), torch.bfloat16, 64) is None


def test_without_a_compiler_the_build_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(build_module, "library_file", lambda name: tmp_path / "lib" / name)
    monkeypatch.setenv("CXX", str(tmp_path / "no-such-compiler"))
    with pytest.raises(BuildError, match="CXX"):
        build("AVX2")
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(BuildError, match="failed"):
        build("AVX512")
    assert not list((tmp_path / "lib").iterdir())
