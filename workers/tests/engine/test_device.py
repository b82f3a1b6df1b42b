"""The device-neutral path: what is decided at start, attention behind its interface, passes as graphs, device mismatch.

No GPU is needed, and none has run this: the same code computes on the CPU here, or on tensors that have a device and
no numbers.
"""

import sys
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorDeviceMismatchError, FakeTensorMode
from torch.overrides import TorchFunctionMode

from tandem_worker.engine import Engine, ModelLoadError, Sampling, load_model
from tandem_worker.engine.attention import FlashInferAttention, TorchAttention, choose_attention, page_table
from tandem_worker.engine.batch import decode_batch, prefill_batch
from tandem_worker.engine.config import config_from_json
from tandem_worker.engine.decoder import Decoder
from tandem_worker.engine.device import choose_device, kv_memory_mib, share_of
from tandem_worker.engine.graphs import DecodeGraphs, Shape, bucket, padded, shape_of, tensors_of
from tandem_worker.engine.kv_format import kv_format
from tandem_worker.engine.model import expected_shapes
from tandem_worker.engine.sampler import Draw, pick_tokens
from workers.tests.engine import flashinfer_standin
from workers.tests.engine.halves import GREEDY, PROMPTS
from workers.tests.tiny import CONFIG, SETTINGS, generate

CUDA = torch.device("cuda")
UNSAID = replace(SETTINGS, kv_memory_mib=0)
CONFIG_64 = {**CONFIG, "hidden_size": 256}  # heads of 64, as FlashInfer has them


class Row:
    def __init__(self, tokens, pages, computed=0):
        self.tokens, self.pages, self.computed = tokens, pages, computed


ROWS = [Row([5] * 9, [0, 1, 2]), Row([6] * 2, [3]), Row([7] * 4, [4])]


@pytest.mark.parametrize(
    ("wanted", "devices", "changes", "chosen"),
    [
        ("auto", 0, {}, "cpu"),
        ("auto", 2, {}, "cuda"),
        ("cpu", 2, {}, "cpu"),
        ("cuda", 1, {}, "cuda"),
        ("cuda", 0, {}, "torch sees no CUDA device"),
        ("cuda", 1, {"tensor_parallel": 2, "kv_memory_mib": 64}, "needs as many CUDA devices; this worker sees 1"),
        ("cuda", 2, {"tensor_parallel": 2}, "say --kv-memory-mib"),
        ("cuda", 2, {"tensor_parallel": 2, "kv_memory_mib": 64}, "cuda"),
        ("cuda", 1, {"weights": "int8"}, "--weights int8 is served on CPUs"),
        ("auto", 0, {"weights": "int8", "tensor_parallel": 4}, "cpu"),
    ],
)
def test_choose_device(wanted, devices, changes, chosen):
    settings = replace(UNSAID, **changes)
    if chosen in {"cpu", "cuda"}:
        assert choose_device(wanted, devices, settings) == chosen
        return
    with pytest.raises(ModelLoadError, match=chosen):
        choose_device(wanted, devices, settings)


def test_kv_memory_is_what_was_asked_for_or_by_what_is_free():
    assert kv_memory_mib(replace(UNSAID, kv_memory_mib=7)) == 7
    assert share_of(80 << 30) == int(0.85 * 80 * 1024)


GIB = 2**30


def group(folder, limit, current=0, inactive=0):
    """What a container sees of its own memory."""
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{current}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {inactive}\nactive_file 3\n")


@pytest.mark.parametrize(
    ("seen", "changes", "expected"),
    [
        pytest.param(None, {}, 512, id="nobody says"),
        pytest.param({"limit": "max"}, {}, 512, id="no limit"),
        pytest.param({"limit": 16 * GIB, "current": 4 * GIB}, {}, 6 * 1024, id="half of what is left"),
        pytest.param({"limit": 16 * GIB, "current": 4 * GIB, "inactive": 2 * GIB}, {}, 7 * 1024, id="but file pages"),
        pytest.param({"limit": GIB, "current": 2 * GIB}, {}, 0, id="nothing is left, which the store refuses"),
        pytest.param({"limit": "much"}, {}, 512, id="what cannot be read says nothing"),
        pytest.param({"limit": 16 * GIB}, {"tensor_parallel": 2}, 512, id="ranks agree beforehand"),
        pytest.param({"limit": 16 * GIB}, {"kv_memory_mib": 64}, 64, id="as asked for"),
    ],
)
def test_a_pods_limit_sizes_its_pages(tmp_path, seen, changes, expected):
    if seen is not None:
        group(tmp_path, **seen)
    assert kv_memory_mib(replace(UNSAID, **changes), tmp_path) == expected


def test_a_page_table_has_no_padding():
    batch, _ = decode_batch(ROWS, 4, None)
    table = page_table(batch, 4)
    assert table.starts.tolist() == [0, 3, 4, 5]
    assert table.pages.tolist() == [0, 1, 2, 3, 4]
    assert table.last.tolist() == [1, 2, 4]
    piece = Row(list(range(9)), [0, 1, 2], computed=5)
    table = page_table(prefill_batch([(piece, 3)], 4, None), 4)
    assert (table.queries.tolist(), table.pages.tolist(), table.last.tolist()) == ([0, 3], [0, 1], [4])


@pytest.mark.parametrize(
    ("changes", "form", "dtype", "installed", "kind"),
    [
        pytest.param({}, "", torch.bfloat16, True, FlashInferAttention, id="serves"),
        pytest.param({}, "", torch.bfloat16, False, TorchAttention, id="not installed"),
        pytest.param({}, "", torch.float32, True, TorchAttention, id="fp32"),
        pytest.param({}, "int8", torch.bfloat16, True, TorchAttention, id="8-bit pages"),
        pytest.param({"hidden_size": 64}, "", torch.bfloat16, True, TorchAttention, id="small heads"),
    ],
)
def test_which_attention_serves_on_cuda(monkeypatch, changes, form, dtype, installed, kind):
    monkeypatch.setitem(sys.modules, "flashinfer", flashinfer_standin if installed else None)
    config = config_from_json({**CONFIG_64, **changes}, "tiny", "tiny")
    with FakeTensorMode():
        assert type(choose_attention(config, kv_format(form, dtype, config.head_dim), dtype, CUDA)) is kind


def flashinfer_over(decoder):
    """The decoder with FlashInfer's calls, on the CPU."""
    space = torch.empty(16, dtype=torch.uint8)
    decoder.attention = FlashInferAttention(flashinfer_standin, decoder.config, decoder.dtype, space)
    decoder.mask_dtype = None


def answers(engine):
    """What the engine says to PROMPTS, from its start to its end."""
    engine.start()
    try:
        return generate(engine, PROMPTS, GREEDY)
    finally:
        engine.stop()


def test_flashinfer_s_calls_give_torch_s_tokens(tiny, expected):
    """Chunked prompts, a shared prefix, decoding in one batch."""
    model = load_model(tiny, SETTINGS)
    flashinfer_over(model.decoder)
    assert answers(Engine(model, SETTINGS)) == expected["greedy"]


@pytest.mark.parametrize(
    ("count", "most", "found"), [(1, 64, 1), (2, 64, 2), (3, 64, 4), (33, 64, 64), (33, 48, 48), (64, 64, 64)]
)
def test_buckets(count, most, found):
    assert bucket(count, most) == found


def test_only_plain_decode_batches_have_a_shape():
    batch, _ = decode_batch(ROWS, 4, torch.float32)
    assert shape_of(batch, Shape(8, 8)) == Shape(4, 4)
    assert shape_of(batch, Shape(2, 8)) is None
    assert shape_of(batch, Shape(8, 2)) is None
    assert shape_of(prefill_batch([(ROWS[0], 4)], 4, torch.float32), Shape(8, 8)) is None


@pytest.mark.parametrize("flashinfer", [False, True], ids=["torch", "flashinfer"])
def test_graphs_give_the_tokens_of_plain_passes(tiny, expected, flashinfer):
    """Replays run the recorded pass again over the same tensors, as CUDA does."""
    shapes = []

    def capture(run):
        logits = run()
        shapes.append(len(logits))
        return lambda: logits.copy_(run()), logits

    model = load_model(tiny, SETTINGS)
    if flashinfer:
        flashinfer_over(model.decoder)
    engine = Engine(model, SETTINGS)
    kv = torch.zeros((engine.pages + 1, *engine._store.page_shape))
    engine._store.tensor, engine._store.ranks = kv[:-1], (kv[:-1],)
    engine._runner._graphs = DecodeGraphs(model.decoder, kv, engine.pages, Shape(8, 128), capture)
    assert answers(engine) == expected["greedy"]
    assert shapes
    assert set(shapes) <= {1, 2, 4, 8}


@pytest.mark.parametrize("dtype", [torch.float32, None], ids=["mask", "no mask"])
def test_batches_of_one_shape_have_the_same_tensors(dtype):
    """A first token alone needs no mask, but the pass that is captured with it runs for others."""
    first, later = (decode_batch([Row([5] * count, [7])], 4, dtype)[0] for count in (1, 3))
    shapes = [[one.shape for one in tensors_of(padded(batch, Shape(1, 1), 4, 99, dtype))] for batch in (first, later)]
    assert shapes[0] == shapes[1]


def test_padding_changes_nothing_of_a_batch():
    batch, _ = decode_batch(ROWS, 4, torch.float32)
    even = padded(batch, Shape(4, 4), 4, 99, torch.float32)
    group = even.groups[0]
    assert group.pages.view(4, 4).tolist() == [[0, 1, 2, 99], [3, 3, 3, 99], [4, 4, 4, 99], [99] * 4]
    assert even.positions[:3].tolist() == batch.positions.tolist()
    assert even.page.tolist() == [*batch.page.tolist(), 99]
    seen = (group.mask[:, 0, 0] == 0).sum(1).tolist()
    assert seen == [one + 1 for one in even.positions.tolist()]


class Placed(TorchFunctionMode):
    """Whoever makes a tensor must say where."""

    MAKERS = (torch.tensor, torch.arange, torch.zeros, torch.ones, torch.empty, torch.full)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        assert func not in self.MAKERS or kwargs.get("device") is not None, f"{func.__name__} without a device"
        return func(*args, **kwargs)


def test_sampling_makes_its_tensors_where_the_logits_are():
    allowed = torch.ones(64, dtype=torch.bool)
    every = Sampling(
        max_tokens=4, temperature=0.8, top_k=5, top_p=0.9, min_p=0.01, logit_bias=((3, 1.0),),
        presence_penalty=0.5, frequency_penalty=0.5, repetition_penalty=1.2, top_logprobs=2,
    )  # fmt: skip
    draws = [
        Draw(Sampling(max_tokens=1), 1, 0),
        Draw(Sampling(max_tokens=1, temperature=1.0), 2, 0),
        Draw(every, 3, 1, tokens=(1, 2, 3), forbidden=(5,), allowed=allowed),
    ]
    logits = torch.randn(3, 64)
    with Placed():
        picked = pick_tokens(logits, draws)
    assert [one.id for one in picked] == [one.id for one in pick_tokens(logits, draws)]


def faked(batch, mode):
    """The host's batch, without numbers."""

    def fake(one):
        return None if one is None else mode.from_tensor(one)

    groups = tuple(replace(one, pages=fake(one.pages), mask=fake(one.mask)) for one in batch.groups)
    rows = {name: fake(getattr(batch, name)) for name in ("tokens", "positions", "page", "slot", "wanted")}
    return replace(batch, groups=groups, **rows)


@pytest.mark.parametrize("kv", ["", "int8", "fp8"])
@pytest.mark.parametrize("family", ["LlamaForCausalLM", "Qwen3ForCausalLM"])
def test_a_pass_on_cuda_mixes_no_devices(family, kv):
    """By torch's own rules for tensors that have a device and no numbers: a mixture raises."""
    config = config_from_json({**CONFIG, "architectures": [family], "head_dim": 16}, "tiny", "tiny")
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode, torch.inference_mode():
        tensors = {
            name: torch.empty(shape, dtype=torch.bfloat16, device=CUDA)
            for name, shape in expected_shapes(config).items()
        }
        decoder = Decoder(config, tensors, torch.bfloat16, 64, kv=kv)
        form = decoder.kv_format
        pages = torch.empty(8, config.layers, 2, 4, config.kv_heads, form.row, dtype=form.dtype, device=CUDA)
    batches = [
        decode_batch(ROWS, 4, decoder.mask_dtype)[0],
        prefill_batch([(ROWS[0], 4), (Row([1] * 9, [5, 6, 7], computed=4), 5)], 4, decoder.mask_dtype),
    ]
    with mode, torch.inference_mode():
        for batch in batches:
            logits = decoder.forward(faked(batch, mode), pages)
            assert (logits.device.type, tuple(logits.shape)) == ("cuda", (len(batch.wanted), config.vocab))
        with pytest.raises(FakeTensorDeviceMismatchError):
            decoder.compute(faked(batches[0], mode), pages, decoder.attention)
